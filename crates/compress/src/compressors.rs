use std::fmt;
use std::sync::Arc;

use paceline_strategy::{Aspect, Call, Method, Registry, Strategy};

use crate::rules::RULES;
use crate::{Compressor, Piece};

/// Makes the compressor of one operation. The call has every argument with a default filled in.
type Make = Arc<dyn Fn(&Call, &Piece) -> Box<dyn Compressor> + Send + Sync>;

/// The compressors that a program has.
#[derive(Clone, Default)]
pub struct Compressors {
    known: Vec<(&'static str, Make)>,
}

/// What a strategy has chosen: a compressor with its arguments.
#[derive(Clone)]
pub struct Compression {
    call: Call,
    make: Make,
}

/// A strategy names a compressor that the program has not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no compressor for compress={name}; give the registry one of that name, or choose compress=none")]
pub struct NoCompressor {
    /// Its word.
    pub name: String,
}

impl Compressors {
    /// Adds a compressor, and its word and what goes together with it to the grammar; or replaces the one of that name.
    ///
    /// # Panics
    /// If the method's aspect is not compression.
    pub fn add(
        &mut self,
        grammar: &mut Registry,
        method: Method,
        make: impl Fn(&Call, &Piece) -> Box<dyn Compressor> + Send + Sync + 'static,
    ) {
        assert_eq!(method.aspect, Aspect::Compress, "`{}` is no method of compression", method.name);
        if self.known.is_empty() {
            RULES.iter().for_each(|rule| grammar.add_rule(*rule));
        }
        grammar.add_method(method);
        self.known.retain(|(name, _)| *name != method.name);
        self.known.push((method.name, Arc::new(make)));
    }

    /// What a strategy has chosen; nothing if it is `none`.
    ///
    /// # Errors
    /// There is no such compressor here.
    pub fn of(&self, strategy: &Strategy) -> Result<Option<Compression>, NoCompressor> {
        let Some(call) = strategy.compressor() else { return Ok(None) };
        let found = self.known.iter().find(|(name, _)| *name == call.name);
        let (_, make) = found.ok_or_else(|| NoCompressor { name: call.name.clone() })?;
        Ok(Some(Compression { call: call.clone(), make: make.clone() }))
    }

    /// The names, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.iter().map(|(name, _)| *name)
    }
}

impl fmt::Debug for Compressors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Compression {
    /// A new compressor for a piece of the gradients.
    pub fn compressor(&self, piece: &Piece) -> Box<dyn Compressor> {
        (self.make)(&self.call, piece)
    }
}

impl fmt::Debug for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Compression").field(&self.call).finish()
    }
}

#[cfg(test)]
mod tests {
    use paceline_strategy::{Kind, Parameter, Presence};

    use super::*;

    /// So many bytes, whatever the gradient.
    struct Fixed(usize);

    impl Compressor for Fixed {
        fn bytes(&self) -> usize {
            self.0
        }

        fn compress(&mut self, _gradient: &[f32], _bytes: &mut [u8]) {}

        fn add_decompressed(&self, _bytes: &[u8], _sum: &mut [f32]) {}
    }

    const COUNT: Parameter =
        Parameter { name: "count", kind: Kind::Count { min: 1, max: 9 }, presence: Presence::Default("2") };

    fn method(name: &'static str) -> Method {
        Method {
            aspect: Aspect::Compress,
            name,
            parameters: &[COUNT],
            sentence: "{count} bytes instead of gradients",
            lossless: false,
            available: true,
        }
    }

    /// With `fixed`, and with `onebit`, a word that was planned.
    fn registries() -> (Registry, Compressors) {
        let (mut grammar, mut compressors) = (Registry::built_in(), Compressors::default());
        for name in ["fixed", "onebit"] {
            let make = |call: &Call, piece: &Piece| -> Box<dyn Compressor> {
                Box::new(Fixed(piece.elements * call.number(0).unwrap_or_default() as usize))
            };
            compressors.add(&mut grammar, method(name), make);
        }
        (grammar, compressors)
    }

    #[test]
    fn a_strategy_names_a_compressor_and_its_arguments() {
        let (grammar, compressors) = registries();
        let bytes = |text: &str| {
            let compression = compressors.of(&grammar.parse(text).unwrap()).unwrap();
            compression.map(|it| it.compressor(&Piece { elements: 100, operation: 0, rank: 0 }).bytes())
        };
        assert_eq!(bytes("wfbp-a2a"), None);
        assert_eq!(bytes("wfbp-a2a,compress=fixed"), Some(200));
        assert_eq!(bytes("ddp,compress=onebit:7"), Some(700));
        assert_eq!(format!("{compressors:?}"), r#"["fixed", "onebit"]"#);
    }

    #[test]
    fn the_last_one_of_a_name_counts() {
        let (mut grammar, mut compressors) = registries();
        compressors.add(&mut grammar, method("fixed"), |_, _| Box::new(Fixed(1)));
        let strategy = grammar.parse("compress=fixed").unwrap();
        let compression = compressors.of(&strategy).unwrap().expect("it was added");
        assert_eq!(compression.compressor(&Piece { elements: 100, operation: 0, rank: 0 }).bytes(), 1);
        assert_eq!(compressors.names().collect::<Vec<_>>(), ["onebit", "fixed"]);
    }

    #[test]
    fn a_word_without_a_compressor_is_named() {
        let (grammar, _) = registries();
        let refused = Compressors::default().of(&grammar.parse("compress=fixed").unwrap()).unwrap_err();
        assert!(refused.to_string().starts_with("there is no compressor for compress=fixed"), "{refused}");
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_the_reason() {
        let (grammar, _) = registries();
        let cases = [
            ("compress=fixed*onebit", "compress=fixed*onebit", "nobody can compress what `fixed:2` has made"),
            ("ddp,arch=ps:apply,compress=fixed", "compress=fixed", "choose the mode aggregate"),
            ("ddp,compress=fixed:3,arch=a2a:2d-torus", "arch=a2a:2d-torus", "what compress=fixed:3 makes is gathered"),
            ("auto,compress=fixed", "compress=fixed", "nobody can predict what compress=fixed:2 takes"),
            ("schedule=auto,compress=onebit", "compress=onebit", "name a schedule and an arch"),
        ];
        for (text, blamed, reason) in cases {
            let error = grammar.parse(text).unwrap_err();
            assert_eq!((&text[error.span.clone()], error.to_string().contains(reason)), (blamed, true), "{error}");
        }
        for text in [
            "wfbp-ps,compress=fixed",
            "ddp,compress=fixed,arch=a2a:ring",
            "mg-wfbp,compress=fixed",
            "bytescheduler-a2a,compress=onebit",
        ] {
            assert!(grammar.parse(text).is_ok(), "{text}");
        }
    }
}
