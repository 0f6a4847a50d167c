//! How large a volume is to be.

use tonic::Status;

use crate::v1::CapacityRange;

/// Sizes are whole multiples of this, in bytes: of the blocks of every disk and file system.
const UNIT: u64 = 4096;

/// Where nothing is said.
const USUAL: u64 = 1 << 30;

/// The smallest that a file system of ours fits in (XFS wants 300 MB; ext4 less).
const MIN: u64 = 1 << 20;

/// What may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// At least so many bytes, if anything is said.
    pub(super) required: u64,
    /// At most so many.
    limit: Option<u64>,
}

impl Wanted {
    /// Reads what is asked for.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`: there is no such size.
    pub(super) fn new(range: Option<CapacityRange>) -> Result<Self, Status> {
        let range = range.unwrap_or_default();
        let bytes = |what: &str, bytes: i64| {
            let bytes = u64::try_from(bytes);
            bytes.map_err(|_| Status::out_of_range(format!("{what} is negative")))
        };
        let required = bytes("required_bytes", range.required_bytes)?;
        let limit = bytes("limit_bytes", range.limit_bytes)?;
        let limit = (limit > 0).then_some(limit);
        if let Some(limit) = limit.filter(|limit| *limit < required) {
            let what = format!("limit_bytes {limit} is less than required_bytes {required}");
            return Err(Status::out_of_range(what));
        }
        Ok(Self { required, limit })
    }

    /// Would it do?
    pub(super) fn allows(&self, size: u64) -> bool {
        size >= self.required && self.limit.is_none_or(|limit| size <= limit)
    }

    /// The size of a new volume that holds at least so much.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`: none is allowed.
    pub(super) fn size(&self, at_least: u64) -> Result<u64, Status> {
        let usual = self.limit.map_or(USUAL, |limit| USUAL.min(limit / UNIT * UNIT));
        let wanted = if self.required == 0 { at_least.max(usual) } else { self.required };
        let size = wanted.max(at_least).max(MIN).checked_next_multiple_of(UNIT);
        let size = size.filter(|size| i64::try_from(*size).is_ok() && self.allows(*size));
        size.ok_or_else(|| {
            let limit = self.limit.map_or(String::new(), |limit| format!(" up to {limit}"));
            Status::out_of_range(format!(
                "no size from {} bytes{limit} is possible (allowed: multiples of {UNIT}, from \
                 {MIN} on; what a volume is made of has {at_least} bytes)",
                self.required
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(required_bytes: i64, limit_bytes: i64) -> Result<Wanted, Status> {
        Wanted::new(Some(CapacityRange { required_bytes, limit_bytes }))
    }

    #[test]
    fn sizes_are_within_what_is_asked_for() {
        let size = |required, limit, least| wanted(required, limit).unwrap().size(least).ok();
        assert_eq!(size(0, 0, 0), Some(1 << 30));
        assert_eq!(size(0, 5 << 20, 0), Some(5 << 20));
        assert_eq!(size(5 << 20, 0, 0), Some(5 << 20));
        assert_eq!(size((5 << 20) + 1, 0, 0), Some((5 << 20) + 4096));
        assert_eq!(size((5 << 20) + 1, (5 << 20) + 2, 0), None);
        assert_eq!(size(1, 0, 0), Some(1 << 20));
        assert_eq!(size(1, 100, 0), None);
        // A copy is at least as large as its original.
        assert_eq!(size(1 << 20, 0, 3 << 20), Some(3 << 20));
        assert_eq!(size(1 << 20, 2 << 20, 3 << 20), None);
        assert_eq!(size(i64::MAX, 0, 0), None);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for (required, limit) in [(-1, 0), (0, -1), (2, 1)] {
            let refused = wanted(required, limit).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::OutOfRange);
        }
        assert!(Wanted::new(None).unwrap().allows(1 << 40));
        assert!(!wanted(2, 4).unwrap().allows(1) && !wanted(2, 4).unwrap().allows(5));
    }
}
