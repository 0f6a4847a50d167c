//! `enkaku.open` and what it returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backends::{Config, Location, Volume as Backend};
use block::layer::{CacheConfig, CacheLayer, CacheMode, ReadOnlyLayer};
use block::{BlockError, Buf, Device};
use export::ByteDevice;
use iscsi::initiator::{Config as IscsiConfig, Secret};
use path::PolicyConfig;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::error::{argument, opening, operation};
use crate::runtime::Threads;
use crate::statistics;

/// Most connections that may be asked for.
const CONNECTIONS_MAX: u32 = 64;
/// Most bytes of one call: beyond it somebody means several, and would have all of it in memory.
const BYTES_MAX: u64 = 1 << 30;
/// Longest time that may be waited for a target that is gone.
const TIMEOUT_S_MAX: f64 = 86_400.0;

/// Opens a volume by its URL: iscsi://[user@]host[:port]/target-iqn/lun, nbd://host[:port]/export
/// or nbd+unix:///export?socket=path.
///
/// `mode` is "r", or "r+" to write, too. `password` is the CHAP password of the URL's user
/// (otherwise LIBISCSI_CHAP_PASSWORD). `connections` is 1 to 64; None has them chosen while data
/// flows. `cache` is "none", "read" (reads ahead of whoever reads in order) or "write-back" (writes
/// are done in memory, and safe after flush() or close()). `timeout` is how many seconds I/O waits
/// for a target that is gone.
#[pyfunction]
#[pyo3(signature = (url, mode = "r", *, password = None, connections = None, cache = "read",
                    timeout = 120.0, initiator_name = None))]
#[allow(clippy::too_many_arguments, reason = "keywords in Python")]
pub(crate) fn open(
    py: Python<'_>,
    url: &str,
    mode: &str,
    password: Option<String>,
    connections: Option<u32>,
    cache: &str,
    timeout: f64,
    initiator_name: Option<&str>,
) -> PyResult<Volume> {
    let mut location: Location =
        url.parse().map_err(|error| argument(format!("{}: {error}", without_password(url))))?;
    let read_only = match mode {
        "r" => true,
        "r+" => false,
        _ => return Err(argument(format!("mode {mode:?}: \"r\" or \"r+\" is allowed"))),
    };
    let cache = match cache {
        "none" => CacheMode::None,
        "read" => CacheMode::Read,
        "write-back" if !read_only => CacheMode::WriteBack,
        "write-back" => {
            return Err(argument("cache \"write-back\": needs mode \"r+\""));
        }
        _ => {
            return Err(argument(format!(
                "cache {cache:?}: \"none\", \"read\" or \"write-back\" is allowed"
            )));
        }
    };
    if let Some(password) = password {
        set_password(&mut location, password)?;
    }
    let config = config(connections, timeout, initiator_name, read_only)?;
    let threads = Threads::of_this_process()?;
    let name = location.key();
    let opened = threads.wait(py, Backend::open(&location, config))?;
    let volume = opened.map_err(|error| opening(&name, &error))?;
    Ok(Volume::new(name, threads, volume, cache, read_only))
}

/// For a message: nobody has found out yet where a password would stand.
fn without_password(url: &str) -> String {
    match (url.find("://"), url.find('@')) {
        (Some(scheme), Some(at)) if scheme + 3 < at => {
            format!("{}…{}", &url[..scheme + 3], &url[at..])
        }
        _ => url.to_owned(),
    }
}

fn set_password(location: &mut Location, password: String) -> PyResult<()> {
    match location {
        Location::Iscsi(url) if url.user.is_some() => {
            url.password = Some(Secret::new(password));
            Ok(())
        }
        Location::Iscsi(url) => {
            Err(argument(format!("password: {url} names no user; write iscsi://USER@HOST/…")))
        }
        _ => Err(argument(format!("password: is for iscsi:// volumes, not for {location}"))),
    }
}

fn config(
    connections: Option<u32>,
    timeout: f64,
    initiator_name: Option<&str>,
    read_only: bool,
) -> PyResult<Config> {
    if !(0.0..=TIMEOUT_S_MAX).contains(&timeout) {
        return Err(argument(format!("timeout {timeout}: 0 to {TIMEOUT_S_MAX} s is allowed")));
    }
    if let Some(n) = connections.filter(|n| !(1..=CONNECTIONS_MAX).contains(n)) {
        return Err(argument(format!("connections {n}: 1 to {CONNECTIONS_MAX} is allowed")));
    }
    let timeout = Duration::from_secs_f64(timeout);
    let iscsi = match initiator_name {
        Some(name) => IscsiConfig::new(name)
            .map_err(|error| argument(format!("initiator_name {name:?}: {error}")))?,
        None => IscsiConfig::default(),
    };
    let mut config = Config { iscsi, ..Config::default() };
    let policy = connections.map_or_else(PolicyConfig::default, PolicyConfig::Fixed);
    config.iscsi = config.iscsi.policy(policy).replacement_timeout(timeout);
    config.nbd.replacement_timeout = timeout;
    config.nbd.read_only = read_only;
    if let Some(n) = connections {
        config.nbd.connections = n as usize;
    }
    Ok(config)
}

/// A volume behind iSCSI or NBD, in use. A context manager: what it leaves is flushed and closed.
#[pyclass(frozen, module = "enkaku")]
pub(crate) struct Volume {
    /// Its URL without user and password.
    name: String,
    threads: Threads,
    backend: Backend,
    cache: Arc<CacheLayer>,
    bytes: ByteDevice,
    read_only: bool,
    closed: AtomicBool,
}

impl Volume {
    fn new(
        name: String,
        threads: Threads,
        backend: Backend,
        cache: CacheMode,
        read_only: bool,
    ) -> Self {
        // The cache has tasks of its own.
        let cache = threads.within(|| {
            let config = CacheConfig::default().mode(cache);
            Arc::new(CacheLayer::new(backend.device(), config))
        });
        let mut device: Device = cache.clone();
        if read_only {
            device = Arc::new(ReadOnlyLayer::new(device));
        }
        let read_only = device.info().read_only;
        let bytes = ByteDevice::new(device);
        Self { name, threads, backend, cache, bytes, read_only, closed: AtomicBool::new(false) }
    }

    /// It may be used: it is open, in this process.
    fn check(&self) -> PyResult<()> {
        self.threads.check(&self.name)?;
        if self.closed.load(Ordering::Acquire) {
            return Err(argument(format!("{}: is closed", self.name)));
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &BlockError) -> PyErr {
        operation(&self.name, what, error)
    }

    /// How much of a range there is, as for a file: reading at the end finds less, or nothing.
    fn there(&self, length: u64, offset: u64) -> PyResult<usize> {
        let left = self.bytes.info().size.saturating_sub(offset).min(length);
        if left > BYTES_MAX {
            return Err(argument(format!(
                "{}: read of {left} bytes: at most {BYTES_MAX} at a time",
                self.name
            )));
        }
        Ok(left as usize)
    }

    /// Reads while the interpreter runs others.
    fn read(&self, py: Python<'_>, length: usize, offset: u64) -> PyResult<export::ReadData> {
        let read = self.threads.wait(py, async { self.bytes.read(offset, length).await })?;
        read.map_err(|error| self.failed(&format!("read of {length} bytes at {offset}"), &error))
    }
}

/// A buffer of Python, whose bytes stand one behind the other.
fn contiguous(name: &str, object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(argument(format!(
            "{name}: the buffer has gaps; numpy.ascontiguousarray copies"
        )));
    }
    Ok(buffer)
}

#[pymethods]
impl Volume {
    /// The URL without user and password.
    #[getter]
    fn url(&self) -> &str {
        &self.name
    }

    /// Capacity in bytes, as of now.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes.info().size
    }

    /// Bytes of a block: writes of parts of one are read, changed and written.
    #[getter]
    fn block_size(&self) -> u32 {
        self.bytes.info().block_size
    }

    /// Writes are refused.
    #[getter]
    fn read_only(&self) -> bool {
        self.read_only
    }

    /// close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Bytes from `offset` on: so many as asked for, less at the end of the volume.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        length: u64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.check()?;
        match self.there(length, offset)? {
            0 => Ok(PyBytes::new(py, b"")),
            length => Ok(PyBytes::new(py, &self.read(py, length, offset)?)),
        }
    }

    /// Fills a writable buffer (bytearray, memoryview, numpy array) from `offset` on; returns how
    /// many bytes there were, which is less at the end of the volume.
    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        self.check()?;
        let buffer = contiguous("buffer", buffer)?;
        if buffer.readonly() {
            return Err(argument("buffer: may not be written to"));
        }
        let length = self.there(buffer.len_bytes() as u64, offset)?;
        if length == 0 {
            return Ok(0);
        }
        let read = self.read(py, length, offset)?;
        // SAFETY: the exporter keeps its memory in place as long as `buffer` lives; it is writable,
        // without gaps and at least `length` long. This thread has the interpreter, so that nobody
        // else's Python changes it now, and `read` is memory of ours.
        unsafe {
            std::ptr::copy_nonoverlapping(read.as_ptr(), buffer.buf_ptr().cast::<u8>(), read.len());
        }
        Ok(read.len())
    }

    /// Writes all of a buffer at `offset`; returns its length. `fua`: it is on stable storage then.
    #[pyo3(signature = (data, offset, *, fua = false))]
    fn pwrite(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: u64,
        fua: bool,
    ) -> PyResult<usize> {
        self.check()?;
        let data = contiguous("data", data)?;
        let length = data.len_bytes();
        if length as u64 > BYTES_MAX {
            return Err(argument(format!(
                "{}: write of {length} bytes: at most {BYTES_MAX} at a time",
                self.name
            )));
        }
        let copy = if length == 0 {
            Buf::new(0)
        } else {
            // SAFETY: the exporter keeps these bytes in place as long as `data` lives. This thread
            // has the interpreter while they are copied.
            Buf::copy_from(unsafe {
                std::slice::from_raw_parts(data.buf_ptr().cast::<u8>(), length)
            })
        };
        let bytes = copy.freeze();
        let written =
            self.threads.wait(py, async { self.bytes.write(offset, bytes, fua).await })?;
        written.map_err(|error| {
            self.failed(&format!("write of {length} bytes at {offset}"), &error)
        })?;
        Ok(length)
    }

    /// Everything that was written before is on stable storage when this returns.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        let flushed = self.threads.wait(py, async { self.bytes.flush().await })?;
        flushed.map_err(|error| self.failed("flush", &error))
    }

    /// The range is not needed any more; parts of blocks at its ends are left alone.
    fn discard(&self, py: Python<'_>, length: u64, offset: u64) -> PyResult<()> {
        self.check()?;
        let done = self.threads.wait(py, async { self.bytes.trim(offset, length, false).await })?;
        done.map_err(|error| self.failed(&format!("discard of {length} bytes at {offset}"), &error))
    }

    /// The range reads as zeroes.
    fn zero(&self, py: Python<'_>, length: u64, offset: u64) -> PyResult<()> {
        self.check()?;
        let done =
            self.threads.wait(py, async { self.bytes.zero(offset, length, false, true).await })?;
        done.map_err(|error| self.failed(&format!("zero of {length} bytes at {offset}"), &error))
    }

    /// What of the range is data and what are holes, in order and without gaps: a list of
    /// (offset, length, hole). Without `length`, up to the end.
    #[pyo3(signature = (offset = 0, length = None))]
    fn extents<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.check()?;
        let length = length.unwrap_or_else(|| self.bytes.info().size.saturating_sub(offset));
        if length == 0 {
            return Ok(Vec::new());
        }
        let found = self.threads.wait(py, async { self.bytes.extents(offset, length).await })?;
        let found = found.map_err(|error| {
            self.failed(&format!("extents of {length} bytes at {offset}"), &error)
        })?;
        let class = py.import("enkaku")?.getattr("Extent")?;
        found.iter().map(|one| class.call1((one.offset, one.len, one.hole))).collect()
    }

    /// What the path does, as a dict; None of a volume behind NBD.
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let report = self.backend.iscsi().map(|disk| disk.path());
        report.map(|report| statistics::path(py, &report)).transpose()
    }

    /// Flushes and logs out. A second time it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.threads.check(&self.name)?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (written, closed) = self
            .threads
            .wait(py, async { (self.cache.close().await, self.backend.close().await) })?;
        written.map_err(|error| self.failed("writing out the cache", &error))?;
        closed.map_err(|error| self.failed("close", &error))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = match (self.closed(), self.read_only) {
            (true, _) => "closed",
            (false, true) => "r",
            (false, false) => "r+",
        };
        format!("<enkaku.Volume {} ({state}), {} bytes>", self.name, self.size())
    }
}
