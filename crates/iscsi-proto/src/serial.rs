//! Serial number arithmetic (RFC 1982, SERIAL_BITS = 32), as RFC 7143 §4.2.2 asks for every
//! sequence number on the wire.

/// Defines a 32-bit serial number that wraps and compares by distance.
///
/// No `Ord`: serial order is not transitive over the whole circle, so it must not sort a map.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//# Comparisons and arithmetic on the ExpCmdSN and MaxCmdSN MUST use Serial Number Arithmetic as
//# defined in [RFC1982] where SERIAL_BITS = 32.
macro_rules! serial_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The number `n` steps on.
            #[must_use]
            pub const fn plus(self, n: u32) -> Self {
                Self(self.0.wrapping_add(n))
            }

            /// The next number.
            #[must_use]
            pub const fn next(self) -> Self {
                self.plus(1)
            }

            /// Steps from `earlier` to `self`, negative if `self` comes before it.
            pub const fn since(self, earlier: Self) -> i32 {
                self.0.wrapping_sub(earlier.0) as i32
            }

            /// `self` comes before `other`.
            pub const fn is_before(self, other: Self) -> bool {
                self.since(other) < 0
            }

            /// Returns the number and moves on to the next one.
            pub fn take(&mut self) -> Self {
                let this = *self;
                *self = this.next();
                this
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:#x})", stringify!($name), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

serial_number! {
    /// Command sequence number, one series for a whole session (§4.2.2.1).
    CmdSn
}
serial_number! {
    /// Status sequence number, one series per connection (§4.2.2.2).
    StatSn
}
serial_number! {
    /// Number of a Data-In/Data-Out PDU within a command or sequence (§4.2.2.3).
    DataSn
}
serial_number! {
    /// Number of an R2T within a command (§4.2.2.3); shares its series with DataSN of Data-In.
    R2tSn
}

#[cfg(test)]
mod tests {
    use super::CmdSn;

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //= type=test
    //# Comparisons and arithmetic on the ExpCmdSN and MaxCmdSN MUST use Serial Number Arithmetic as
    //# defined in [RFC1982] where SERIAL_BITS = 32.
    #[test]
    fn order_survives_the_wrap() {
        let last = CmdSn(u32::MAX);
        assert!(last.is_before(last.next()));
        assert!(!last.next().is_before(last));
        assert_eq!(last.plus(3).since(last), 3);
        assert_eq!(last.since(last.plus(3)), -3);
    }
}
