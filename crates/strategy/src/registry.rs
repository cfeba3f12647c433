use crate::built_in;
use crate::{Aspect, Method, Parameter, Presence, Strategy};

/// A word for a whole strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The word.
    pub name: &'static str,
    /// The strategy in the grammar; omitted aspects take their defaults. None: a known word for something that isn't
    /// built yet.
    pub strategy: Option<&'static str>,
}

/// Says why a strategy makes no sense, if it is this rule's business. Called with strategies whose methods and arguments
/// are all valid.
pub type Rule = fn(&Strategy) -> Option<Senseless>;

/// Why choices don't go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Senseless {
    /// The aspect that the user should change.
    pub aspect: Aspect,
    /// Why, and what to write instead.
    pub reason: String,
}

/// What a strategy can name, and what goes together.
#[derive(Clone, Debug)]
pub struct Registry {
    methods: Vec<Method>,
    presets: Vec<Preset>,
    rules: Vec<Rule>,
    defaults: &'static str,
}

impl Registry {
    /// What Paceline itself can run, and the words that it knows besides.
    pub fn built_in() -> Self {
        Registry {
            methods: built_in::METHODS.to_vec(),
            presets: built_in::PRESETS.to_vec(),
            rules: built_in::RULES.to_vec(),
            defaults: built_in::DEFAULTS,
        }
    }

    /// Adds a method. One of the same aspect and name is replaced: that is how a planned method becomes available, and
    /// how one gets more arguments.
    pub fn add_method(&mut self, method: Method) {
        match self.methods.iter_mut().find(|known| known.aspect == method.aspect && known.name == method.name) {
            Some(known) => *known = method,
            None => self.methods.push(method),
        }
    }

    /// Adds a preset, or replaces the one of the same name.
    pub fn add_preset(&mut self, preset: Preset) {
        match self.presets.iter_mut().find(|known| known.name == preset.name) {
            Some(known) => *known = preset,
            None => self.presets.push(preset),
        }
    }

    /// Adds a rule about what doesn't go together.
    pub fn add_rule(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// The method of that name, available or not.
    pub fn method(&self, aspect: Aspect, name: &str) -> Option<&Method> {
        self.methods(aspect).find(|method| method.name == name)
    }

    /// The methods of an aspect, available or not.
    pub fn methods(&self, aspect: Aspect) -> impl Iterator<Item = &Method> {
        self.methods.iter().filter(move |method| method.aspect == aspect)
    }

    /// The presets, whether their methods are available or not.
    pub fn presets(&self) -> &[Preset] {
        &self.presets
    }

    /// The schedules that stand for a whole strategy by themselves, as presets do: those that can run and say nothing without
    /// an argument, such as `fusion:25MiB`. The other aspects take their defaults.
    pub fn short_forms(&self) -> impl Iterator<Item = &Method> {
        let needs_one = |parameter: &Parameter| parameter.presence == Presence::Required;
        let schedules = self.methods(Aspect::Schedule);
        schedules.filter(move |method| method.available && method.parameters.iter().any(needs_one))
    }

    /// The rules.
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// A strategy with every aspect, for those that a text omits.
    pub(crate) fn defaults(&self) -> &'static str {
        self.defaults
    }
}
