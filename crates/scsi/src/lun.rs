//! [`Lun`]: logical unit numbers and their 8-byte form (SAM-5 §4.7).

/// A logical unit number of one level, as REPORT LUNS lists it and commands carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(u16);

impl Lun {
    /// Largest number that the flat space method can carry (14 bits).
    pub const MAX: u16 = 0x3fff;

    /// A logical unit number up to [`Lun::MAX`].
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Reads the 8-byte field: peripheral device addressing (bus 0) or flat space addressing, one
    /// level. `None` for everything else: no such logical unit exists here.
    pub const fn decode(field: u64) -> Option<Self> {
        let [high, low, rest @ ..] = field.to_be_bytes();
        if u64::from_be_bytes([0, 0, rest[0], rest[1], rest[2], rest[3], rest[4], rest[5]]) != 0 {
            return None;
        }
        match high >> 6 {
            0b00 if high == 0 => Some(Self(low as u16)),
            0b01 => Some(Self(((high & 0x3f) as u16) << 8 | low as u16)),
            _ => None,
        }
    }

    /// The 8-byte field: peripheral device addressing up to 255, flat space addressing above.
    pub const fn encode(self) -> u64 {
        let method = if self.0 < 256 { 0 } else { 0x4000 };
        ((self.0 | method) as u64) << 48
    }
}

impl std::fmt::Display for Lun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_the_round_trip() {
        for number in 0..=Lun::MAX {
            let lun = Lun::new(number).unwrap();
            assert_eq!(Lun::decode(lun.encode()), Some(lun));
        }
        assert_eq!(Lun::new(Lun::MAX + 1), None);
    }

    #[test]
    fn methods() {
        let cases = [
            (0x0005_0000_0000_0000, Some(5)), // peripheral device, bus 0
            (0x4005_0000_0000_0000, Some(5)), // flat space
            (0x4100_0000_0000_0000, Some(256)),
            (0x0105_0000_0000_0000, None), // bus 1
            (0x8005_0000_0000_0000, None), // logical unit addressing
            (0xc101_0000_0000_0000, None), // well known REPORT LUNS
            (0x0005_0001_0000_0000, None), // second level
        ];
        for (field, number) in cases {
            assert_eq!(Lun::decode(field).map(Lun::number), number, "{field:#018x}");
        }
    }
}
