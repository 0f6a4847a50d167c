//! One logical unit: from its section of the configuration to a device that is counted.

use std::path::PathBuf;
use std::sync::Arc;

use block::backend::{FileDevice, FileOptions, MemoryDevice};
use block::layer::{ReadOnlyLayer, StatsLayer, ThickLayer, WriteThroughLayer};
use block::{BlockDevice, Device, DeviceInfo};
use scsi::{FileStore, LunOptions, SharedStore, SpaceUsage};

use crate::check::{Described, IN_USE};
use crate::config::{Backing, LunSection, Problem};
use crate::mirror::files::Files;
use crate::mirror::lun::MirrorLun;
use crate::volume::VolumeLun;

/// Block size of files and memory unless told otherwise: what every client can use.
const DEFAULT_BLOCK_SIZE: u32 = 512;

/// What is behind a LUN. One stays open for as long as a LUN uses it, whichever that is.
#[derive(Clone)]
pub(crate) enum Storage {
    File(Arc<FileDevice>),
    Memory(Arc<MemoryDevice>),
    Mirror(Arc<MirrorLun>),
    Volume(Arc<VolumeLun>),
    /// Not opened, only known to open: what a check sees.
    Trial(Arc<Described>),
}

/// How storage and portals are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// To be served.
    ToServe,
    /// To find out whether it could be, beside a daemon that is serving them.
    Trial,
}

impl Storage {
    /// Opens what a section names. What is unwise, or cannot be known, goes to `warnings`.
    pub(crate) fn open(
        section: &LunSection,
        opening: Opening,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Problem> {
        let block_size = section.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
        match &section.backing {
            Backing::Memory(bytes) => MemoryDevice::open(*bytes, block_size)
                .map(|device| Self::Memory(Arc::new(device)))
                .map_err(|error| section.place.problem(error)),
            Backing::Mirror(files) => Self::mirror(section, files, opening, warnings),
            Backing::Volume(volume) if opening == Opening::Trial => {
                VolumeLun::trial(volume, section, warnings)
                    .map_err(|why| section.place.problem(why))?;
                // What it is like, only its server knows.
                Ok(Self::Trial(Arc::new(Described(DeviceInfo::new(1 << 20, DEFAULT_BLOCK_SIZE)))))
            }
            Backing::Volume(volume) => VolumeLun::open(volume, section, warnings)
                .map(Self::Volume)
                .map_err(|why| section.place.problem(why)),
            Backing::Path(path) => {
                let mut options = FileOptions::default()
                    .with_read_only(section.read_only)
                    .with_direct(section.direct);
                options.block_size = section.block_size;
                options.create = section.create;
                if opening == Opening::Trial {
                    let trial = FileDevice::trial(path, &options);
                    let trial = trial.map_err(|error| section.place.problem(error))?;
                    if trial.in_use {
                        warnings.push(section.place.problem(IN_USE).to_string());
                    }
                    return Ok(Self::Trial(Arc::new(Described(trial.info))));
                }
                FileDevice::open(path, &options)
                    .map(|device| Self::File(Arc::new(device)))
                    .map_err(|error| section.place.problem(error))
            }
        }
    }

    fn mirror(
        section: &LunSection,
        files: &Files,
        opening: Opening,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Problem> {
        let problem =
            |why: String| section.place.problem(format!("the mirror {}: {why}", files.name()));
        if opening == Opening::ToServe {
            return MirrorLun::open(files).map(Self::Mirror).map_err(problem);
        }
        let mut in_use = false;
        let info = MirrorLun::trial(files, &mut in_use).map_err(problem)?;
        if in_use {
            warnings.push(section.place.problem(IN_USE).to_string());
        }
        Ok(Self::Trial(Arc::new(Described(info))))
    }

    fn device(&self) -> Device {
        match self {
            Self::Mirror(mirror) => mirror.device(),
            Self::Volume(volume) => volume.device(),
            Self::File(device) => Arc::clone(device) as Device,
            Self::Memory(device) => Arc::clone(device) as Device,
            Self::Trial(device) => Arc::clone(device) as Device,
        }
    }
}

/// Can the storage that is open for one section serve another? What is decided when a file is
/// opened cannot be changed without closing it.
pub(crate) fn opens_alike(one: &LunSection, other: &LunSection) -> bool {
    (&one.backing, one.read_only, one.block_size, one.direct)
        == (&other.backing, other.read_only, other.block_size, other.direct)
}

/// Where the reservations of a unit are kept.
pub(crate) enum Kept {
    /// In memory only.
    Nowhere,
    /// In a file of this daemon's.
    Here(PathBuf),
    /// Where the daemons of a pair see them.
    Together(Arc<dyn SharedStore>),
}

/// A logical unit that is served, or about to be.
#[derive(Clone)]
pub(crate) struct RunningLun {
    pub(crate) section: LunSection,
    pub(crate) storage: Storage,
    pub(crate) stats: Arc<StatsLayer>,
}

impl RunningLun {
    pub(crate) fn new(section: LunSection, storage: Storage) -> Self {
        let mut device = storage.device();
        if section.read_only && !matches!(storage, Storage::File(_)) {
            device = Arc::new(ReadOnlyLayer::new(device)); // a file is opened as such
        }
        if !section.thin {
            device = Arc::new(ThickLayer::new(device));
        }
        if !section.write_cache {
            device = Arc::new(WriteThroughLayer::new(device));
        }
        Self { section, storage, stats: Arc::new(StatsLayer::new(device)) }
    }

    /// This running unit under another section that serves it alike ([`LunSection`]).
    pub(crate) fn with_section(&self, section: &LunSection) -> Self {
        Self { section: section.clone(), ..self.clone() }
    }

    pub(crate) fn device(&self) -> Device {
        Arc::clone(&self.stats) as Device
    }

    /// The file or block device behind it.
    pub(crate) fn file(&self) -> Option<&Arc<FileDevice>> {
        let Storage::File(file) = &self.storage else { return None };
        Some(file)
    }

    /// How it presents itself, and where its reservations are kept.
    pub(crate) fn options(&self, kept: Kept) -> LunOptions {
        let section = &self.section;
        let mut options = LunOptions::default();
        options.serial = section.serial.clone();
        options.naa = section.naa;
        options.physical_block_size = section.physical_block_size;
        if let Some((vendor, product)) = &section.product {
            options = options.with_product(vendor, product);
        }
        options = options
            .with_space_threshold_bytes(section.space_warning_bytes)
            .with_shared_beyond(section.is_shared_beyond());
        match kept {
            Kept::Nowhere => options,
            Kept::Here(path) => options.with_state(FileStore::new(path)),
            Kept::Together(store) => {
                options.shared_state = Some(store);
                options
            }
        }
    }

    /// Takes a larger size of the storage; true if there was one.
    pub(crate) fn grow(&self) -> bool {
        match &self.storage {
            Storage::File(file) => file.grow().unwrap_or(false),
            // A mirror grows by a command of its own.
            // Initiators of a volume are told by whoever watches it.
            Storage::Memory(_) | Storage::Mirror(_) | Storage::Volume(_) | Storage::Trial(_) => {
                false
            }
        }
    }

    /// The mirror behind it.
    pub(crate) fn mirror(&self) -> Option<&Arc<MirrorLun>> {
        let Storage::Mirror(mirror) = &self.storage else { return None };
        Some(mirror)
    }

    /// The volume behind it.
    pub(crate) fn volume(&self) -> Option<&Arc<VolumeLun>> {
        let Storage::Volume(volume) = &self.storage else { return None };
        Some(volume)
    }

    /// Is the storage smaller than what is served?
    pub(crate) fn check_size(&self) -> Result<(), Problem> {
        let Storage::File(file) = &self.storage else { return Ok(()) };
        let place = &self.section.place;
        let now = file.size_now().map_err(|error| place.problem(error))?;
        let served = file.info().size;
        if now < served {
            return Err(place.problem(format!(
                "the storage has shrunk to {now} bytes while {served} are served; \
                 give it its size back, or remove the LUN"
            )));
        }
        Ok(())
    }

    pub(crate) fn space(&self) -> Option<SpaceUsage> {
        let Storage::File(file) = &self.storage else { return None };
        let (available_bytes, used_bytes) = file.space().ok()??;
        Some(SpaceUsage { available_bytes, used_bytes })
    }

    /// Why it cannot be relied on, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        if let Storage::File(file) = &self.storage
            && let Some(error) = file.sync_failure()
        {
            return Some(format!("a sync failed: {error}"));
        }
        if let Some(trouble) = self.mirror().and_then(|mirror| mirror.troubles().into_iter().next())
        {
            return Some(trouble);
        }
        if self.volume().is_some_and(|volume| !volume.is_connected()) {
            return Some("the volume behind it is not connected".to_owned());
        }
        self.stats.is_failing().then(|| "the last operation failed".to_owned())
    }
}
