//! The macro behind every code on the wire: a number with names, not an enum, so that a value
//! this version does not know survives a round trip and is printed in hex.

/// Defines a wire code: `struct Name(u8)` with named constants.
macro_rules! wire_code {
    (
        $(#[$doc:meta])*
        $name:ident($inner:ty) {
            $($(#[$value_doc:meta])* $value:ident = $number:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*

            /// The constant's name, `None` for a value that has none.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($value)),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}::{}", stringify!($name), name),
                    None => write!(f, "{}({:#x})", stringify!($name), self.0),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#x}", self.0),
                }
            }
        }
    };
}
