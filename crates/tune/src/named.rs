//! Enums whose values have a name that parses and prints.

/// A name that stands for nothing here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} of the name `{name}`; there is: {}", known.join(", "))]
pub struct UnknownWord {
    /// What was asked for, such as "transport".
    pub what: &'static str,
    /// The name given.
    pub name: String,
    /// The names that exist.
    pub known: Vec<&'static str>,
}

/// Declares such an enum. The values count from 0, and their numbers stand in keys of contexts: new ones go to the end.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident, $what:literal: $($(#[$doc:meta])* $variant:ident $name:literal,)+) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[repr(u8)]
        pub enum $type { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl $type {
            /// Every value.
            pub const ALL: &'static [$type] = &[$($type::$variant,)+];

            /// The name in files and tables.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownWord;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let known = || $type::ALL.iter().map(|it| it.name()).collect();
                let found = $type::ALL.iter().copied().find(|it| it.name() == name);
                found.ok_or_else(|| $crate::UnknownWord { what: $what, name: name.to_owned(), known: known() })
            }
        }
    };
}
pub(crate) use named;
