//! [`PathLeg`]: a leg that is a file or a block device of this machine, such as a second disk.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use block::backend::{FileDevice, FileOptions};
use block::mirror::{LegSource, OpenLeg};
use block::{BlockDevice, BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result};
use block::{WriteFlags, ZeroFlags};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};

/// A leg at a path. An earlier process that still has it open, be it killed and stuck in a write,
/// holds its lock, so that connecting fails until that one is gone.
pub struct PathLeg {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    options: FileOptions,
    /// What was opened last; locked while it is replaced.
    last: Mutex<Option<Arc<Opened>>>,
}

impl PathLeg {
    /// The leg at `path`, which is opened only when asked to connect.
    pub fn new(path: &Path, options: FileOptions) -> Self {
        let inner = Inner { path: path.to_owned(), options, last: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }
}

impl LegSource for PathLeg {
    fn name(&self) -> String {
        self.inner.path.display().to_string()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.connect().await })
    }
}

impl Inner {
    /// Dropping it halfway does no harm: what has ended stays ended, and the next call waits anew.
    async fn connect(&self) -> Result<OpenLeg> {
        let mut last = self.last.lock().await;
        if let Some(opened) = &*last {
            opened.end().await;
        }
        *last = None;
        let (path, options) = (self.path.clone(), self.options.clone());
        let opening = tokio::task::spawn_blocking(move || FileDevice::open(&path, &options));
        let unreachable = |why: String| BlockError::Unreachable(why);
        let device = opening.await.map_err(|error| unreachable(error.to_string()))?;
        let device = device.map_err(|error| unreachable(error.to_string()))?;
        let opened = Arc::new(Opened::new(Arc::new(device)));
        *last = Some(Arc::clone(&opened));
        // The path says nothing of what is behind it: the superblock decides.
        Ok(OpenLeg {
            device: opened,
            identity: String::new(),
            ordered: Err("a local disk knows no ORDERED commands".to_owned()),
            fence: None,
            inside: Err("it is a local disk".to_owned()),
        })
    }
}

/// A device that can be taken away: then what is under way is waited for, and nothing new begins.
struct Opened {
    /// `None` once it is taken away.
    device: RwLock<Option<Device>>,
    /// As it was last.
    info: DeviceInfo,
    under_way: Arc<UnderWay>,
    runtime: Handle,
}

#[derive(Default)]
struct UnderWay {
    count: AtomicUsize,
    ended: Notify,
}

/// One operation.
struct Operation(Arc<UnderWay>);

impl Drop for Operation {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

impl Opened {
    /// Must be called within a tokio runtime.
    fn new(device: Device) -> Self {
        let (info, runtime) = (device.info(), Handle::current());
        Self { device: RwLock::new(Some(device)), info, under_way: Arc::default(), runtime }
    }

    /// Returns when nothing can change the device any more.
    async fn end(&self) {
        drop(self.device.write().unwrap_or_else(PoisonError::into_inner).take());
        loop {
            let ended = self.under_way.ended.notified();
            if self.under_way.count.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Begins an operation, which goes on to its end even if its caller gives it up.
    fn begin<T: Send + Unpin + 'static>(&self, begin: impl FnOnce(&Device) -> Io<T>) -> Io<T> {
        let (device, operation) = {
            let device = self.device.read().unwrap_or_else(PoisonError::into_inner);
            let Some(device) = device.clone() else {
                return Io::err(BlockError::Unreachable("it was opened anew".into()));
            };
            // Counted while the device is held, so that `end` sees it.
            self.under_way.count.fetch_add(1, Ordering::AcqRel);
            (device, Operation(Arc::clone(&self.under_way)))
        };
        match begin(&device).try_ready() {
            Ok(result) => Io::done(result),
            Err(io) => {
                let task = self.runtime.spawn(async move {
                    let result = io.await;
                    // The file is closed before the operation counts as ended.
                    drop(device);
                    drop(operation);
                    result
                });
                Io::later(async move {
                    let ended = |error| BlockError::Unreachable(format!("{error}"));
                    task.await.unwrap_or_else(|error| Err(ended(error)))
                })
            }
        }
    }
}

impl BlockDevice for Opened {
    fn info(&self) -> DeviceInfo {
        let device = self.device.read().unwrap_or_else(PoisonError::into_inner);
        device.as_ref().map_or_else(|| self.info.clone(), |device| device.info())
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.begin(|device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.begin(|device| device.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.begin(|device| device.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.begin(|device| device.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.begin(|device| device.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.begin(|device| device.extents(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use block::backend::MemoryDevice;
    use block::layer::{Delay, DelayLayer, Delays};

    use super::*;

    fn image(folder: &Path) -> PathBuf {
        let path = folder.join("leg.img");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        path
    }

    #[tokio::test]
    async fn connecting_anew_ends_the_device_before() {
        let folder = tempfile::tempdir().unwrap();
        let leg = PathLeg::new(&image(folder.path()), FileOptions::default());
        let first = leg.connect().await.unwrap().device;
        first.write(0, Bytes::from(vec![1; 4096]), WriteFlags::NONE).await.unwrap();
        let second = leg.connect().await.unwrap().device;
        assert_eq!(second.read(0, Buf::zeroed(4096)).await.unwrap()[..], [1; 4096]);
        let late = first.write(0, Bytes::from(vec![2; 4096]), WriteFlags::FUA).await;
        assert!(matches!(late, Err(BlockError::Unreachable(_))), "{late:?}");
        assert_eq!(second.read(0, Buf::zeroed(4096)).await.unwrap()[..], [1; 4096]);
        assert_eq!(first.info().size, 1 << 20);
    }

    #[tokio::test]
    async fn somebody_elses_file_is_out_of_reach() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let other = FileDevice::open(&path, &FileOptions::default()).unwrap();
        let leg = PathLeg::new(&path, FileOptions::default());
        let error = leg.connect().await.err().unwrap();
        assert!(
            matches!(&error, BlockError::Unreachable(why) if why.contains("in use")),
            "{error}"
        );
        drop(other);
        leg.connect().await.unwrap();
    }

    /// A write given up by its caller is waited for: it could land on a newer one.
    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_waited_for() {
        let disk: Device = Arc::new(MemoryDevice::open(1 << 20, 512).unwrap());
        let slow = Delays { write: Delay::Fixed(Duration::from_secs(3)), ..Delays::default() };
        let slow: Device = Arc::new(DelayLayer::new(Arc::clone(&disk), slow, 1));
        let opened = Arc::new(Opened::new(slow));
        drop(opened.write(0, Bytes::from(vec![1; 4096]), WriteFlags::NONE));
        let begin = tokio::time::Instant::now();
        // An attempt that is given up leaves the next one waiting as long.
        let short = tokio::time::timeout(Duration::from_secs(1), opened.end()).await;
        assert!(short.is_err());
        opened.end().await;
        assert_eq!(begin.elapsed(), Duration::from_secs(3));
        assert_eq!(disk.read(0, Buf::zeroed(4096)).await.unwrap()[..], [1; 4096]);
    }
}
