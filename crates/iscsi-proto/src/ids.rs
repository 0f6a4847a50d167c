//! Names of sessions, connections and tasks on the wire. None is ever used as an index before it
//! was looked up.

/// Defines an opaque identifier that prints in hex.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

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

identifier! {
    /// Initiator Task Tag: names a task for the whole session (§11.2.1.8).
    Itt(u32)
}
identifier! {
    /// Target Transfer Tag: the target's name for a transfer it asked for (§11.7.4, §11.8).
    Ttt(u32)
}
identifier! {
    /// Connection ID within a session, chosen by the initiator (§11.12.7).
    Cid(u16)
}
identifier! {
    /// Target Session Identifying Handle, not 0 for an existing session (§11.12.6).
    Tsih(u16)
}
identifier! {
    /// Logical unit number as the 8-byte SAM field, big-endian on the wire (§11.2.1.7).
    Lun(u64)
}

impl Itt {
    /// "No task": reserved value of the tag (§11.2.1.8).
    pub const NONE: Self = Self(0xffff_ffff);
}

impl Ttt {
    /// "No transfer": reserved value of the tag (§11.7.4).
    pub const NONE: Self = Self(0xffff_ffff);
}

/// Initiator Session ID, 6 bytes: the initiator's part of the session's name (§11.12.5).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// A random-format ISID (T = 10b, §11.12.5) with 24 random bits and a qualifier.
    pub const fn random(bits: u32, qualifier: u16) -> Self {
        let [_, b, c, d] = bits.to_be_bytes();
        let [e, f] = qualifier.to_be_bytes();
        Self([0x80, b, c, d, e, f])
    }

    /// The last two bytes, which tell the sessions of one initiator port apart.
    pub const fn qualifier(self) -> u16 {
        let [.., high, low] = self.0;
        u16::from_be_bytes([high, low])
    }
}

impl std::fmt::Debug for Isid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Isid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
