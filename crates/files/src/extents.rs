//! [`FileExtent`], and the list of them that a file is.

use crate::limits::EXTENTS_MAX;
use crate::{Error, Result};

/// A run of bytes of a file and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, not 0.
    pub len: u64,
    /// First byte on the device. `None` is a hole, which reads as zeroes: nothing is stored there,
    /// or what is stored there has not been written yet.
    pub at: Option<u64>,
}

impl FileExtent {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Puts the extents of one file together, in the order of the file.
///
/// What it lets through is sorted, without gaps, covers the file exactly, lies in the file system,
/// and has no byte of the disk twice.
#[derive(Debug)]
pub(crate) struct Builder {
    extents: Vec<FileExtent>,
    end: u64,
    size: u64,
    /// Bytes of the file system.
    limit: u64,
    place: String,
}

impl Builder {
    /// For a file of `size` bytes that is called `place` in errors.
    pub(crate) fn new(size: u64, limit: u64, place: String) -> Self {
        Self { extents: Vec::new(), end: 0, size, limit, place }
    }

    /// How far the file is known.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of the file behind it.
    pub(crate) fn missing(&self) -> u64 {
        self.size.saturating_sub(self.end)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.end >= self.size
    }

    /// `len` bytes at `offset` of the file are at `at`; up to there is a hole. What lies behind the
    /// end of the file is left out: it may be kept for a file that grows.
    ///
    /// # Errors
    /// An extent before the end of the last one, outside the file system, or one too many.
    pub(crate) fn push(&mut self, offset: u64, len: u64, at: Option<u64>) -> Result<()> {
        if offset < self.end {
            return Err(self.damaged(format!("the map has byte {offset} twice")));
        }
        let len = len.min(self.size.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        if let Some(at) = at
            && at.checked_add(len).is_none_or(|end| end > self.limit)
        {
            let problem = format!(
                "byte {offset} is at byte {at}, outside the file system of {} bytes",
                self.limit
            );
            return Err(self.damaged(problem));
        }
        if offset > self.end {
            self.add(FileExtent { offset: self.end, len: offset - self.end, at: None })?;
        }
        self.add(FileExtent { offset, len, at })
    }

    fn add(&mut self, extent: FileExtent) -> Result<()> {
        self.end = extent.end();
        if let Some(last) = self.extents.last_mut()
            && last.at.map(|at| at + last.len) == extent.at
            && last.at.is_some() == extent.at.is_some()
        {
            last.len += extent.len;
            return Ok(());
        }
        if self.extents.len() >= EXTENTS_MAX {
            return Err(Error::too_much(&self.place, "extents", EXTENTS_MAX as u64));
        }
        self.extents.push(extent);
        Ok(())
    }

    /// The extents; the rest of the file is a hole.
    ///
    /// # Errors
    /// Two extents share a byte of the disk: a loop, or a damaged map.
    pub(crate) fn finish(mut self) -> Result<Vec<FileExtent>> {
        if self.end < self.size {
            self.add(FileExtent { offset: self.end, len: self.size - self.end, at: None })?;
        }
        let mut places: Vec<(u64, u64)> =
            self.extents.iter().filter_map(|extent| Some((extent.at?, extent.len))).collect();
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(self.damaged(format!("byte {} of the disk is in it twice", pair[1].0)));
        }
        Ok(self.extents)
    }

    fn damaged(&self, problem: String) -> Error {
        Error::damaged(&self.place, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder(size: u64) -> Builder {
        Builder::new(size, 1 << 20, "file".into())
    }

    #[test]
    fn neighbours_become_one_and_gaps_are_holes() {
        let mut map = builder(10_000);
        map.push(0, 1000, Some(5000)).unwrap();
        map.push(1000, 1000, Some(6000)).unwrap();
        map.push(4000, 1000, None).unwrap();
        map.push(8000, 4000, Some(0)).unwrap();
        map.push(12_000, 4000, Some(1 << 40)).unwrap(); // behind the end
        let extent = |offset, len, at| FileExtent { offset, len, at };
        let all =
            [extent(0, 2000, Some(5000)), extent(2000, 6000, None), extent(8000, 2000, Some(0))];
        assert_eq!(map.finish().unwrap(), all);
    }

    #[test]
    fn what_is_missing_at_the_end_is_a_hole() {
        assert_eq!(builder(0).finish().unwrap(), []);
        let all = [FileExtent { offset: 0, len: 7, at: None }];
        assert_eq!(builder(7).finish().unwrap(), all);
    }

    #[test]
    fn a_map_that_cannot_be_is_an_error() {
        let mut map = builder(10_000);
        map.push(0, 1000, Some(5000)).unwrap();
        assert!(map.push(999, 1, None).unwrap_err().to_string().contains("byte 999 twice"));
        assert!(map.push(1000, 1000, Some(1 << 20)).is_err());
        assert!(map.push(1000, 1000, Some(u64::MAX)).is_err());
        map.push(1000, 1000, Some(5999)).unwrap();
        assert_eq!(
            map.finish().unwrap_err().to_string(),
            "file: byte 5999 of the disk is in it twice"
        );
    }
}
