//! Enums whose values have a number and a name.

use std::fmt;

/// A name that stands for nothing of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What was asked for: "data type", "reduction", "collective".
    pub what: &'static str,
    /// The name given.
    pub name: String,
    /// The names that exist.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} `{}`; known: {}", self.what, self.name, self.known.join(", "))
    }
}

impl std::error::Error for UnknownName {}

/// Declares an enum whose values have a code, in frames and keys, and a name, in files and tables, that prints and parses. A
/// code is the place of its value, and stays what it is: new values go to the end. The caller depends on serde.
///
/// ```
/// paceline_plan::named_enum! {
///     /// What shines.
///     Colour, "colour":
///     /// Like blood.
///     Red = 0 "red",
///     /// Like the sea.
///     Blue = 1 "blue",
/// }
///
/// assert_eq!((Colour::Blue.to_string(), Colour::from_code(0)), ("blue".to_owned(), Some(Colour::Red)));
/// let error = "mauve".parse::<Colour>().unwrap_err();
/// assert_eq!(error.to_string(), "unknown colour `mauve`; known: red, blue");
/// ```
///
/// With `@values` and without the word for what it is, all but the parsing, for those whose names are read in another way.
#[macro_export]
macro_rules! named_enum {
    (@values $(#[$meta:meta])* $type:ident: $($(#[$doc:meta])* $variant:ident = $code:literal $name:literal,)+) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[repr(u8)]
        pub enum $type { $($(#[$doc])* #[serde(rename = $name)] $variant = $code,)+ }

        impl $type {
            /// Every value, in the order of the codes.
            pub const ALL: &'static [$type] = &[$($type::$variant,)+];

            /// The name on the command line, in files and in reports.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }

            /// The code in frames and keys.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The value with this code, if there is one.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some($type::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
    ($(#[$meta:meta])* $type:ident, $what:literal: $($(#[$doc:meta])* $variant:ident = $code:literal $name:literal,)+) => {
        $crate::named_enum! { @values $(#[$meta])* $type: $($(#[$doc])* $variant = $code $name,)+ }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(name: &str) -> Result<Self, $crate::UnknownName> {
                match name {
                    $($name => Ok($type::$variant),)+
                    _ => Err($crate::UnknownName { what: $what, name: name.to_owned(), known: vec![$($name,)+] }),
                }
            }
        }
    };
}
