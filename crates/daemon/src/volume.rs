//! [`VolumeLun`]: a volume of somebody else's target or server, behind a logical unit of ours.
//!
//! It is closed in order when nobody has it any more. Not here: what a URL means (`backends`), and
//! what a LUN is.

use std::sync::{Arc, Mutex, PoisonError};

use backends::{Config, Location, Volume};
use block::{BlockError, Device};
use iscsi::initiator::Secret;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::error;

use crate::config::secret::from_file;
use crate::config::{LunSection, Place, VolumeSection, VolumeSource};

/// A volume of this daemon.
pub(crate) struct VolumeLun {
    volume: Volume,
    name: String,
    /// They watch its size.
    tasks: Mutex<JoinSet<()>>,
}

impl VolumeLun {
    /// Connects. Must be called on a thread that may block, within a runtime of several.
    ///
    /// # Errors
    /// Why it is not to be had, for people.
    pub(crate) fn open(
        section: &VolumeSection,
        lun: &LunSection,
        warnings: &mut Vec<String>,
    ) -> Result<Arc<Self>, String> {
        let opened = async {
            let config = Config::to_serve(lun.read_only);
            let volume = match &section.source {
                VolumeSource::Command(argv) => Volume::start(argv.clone(), config).await,
                VolumeSource::Url(_) => {
                    Volume::open(&location(section, &lun.place, warnings)?, config).await
                }
            };
            volume.map_err(|error| error.to_string())
        };
        let volume = tokio::task::block_in_place(|| Handle::current().block_on(opened))?;
        let name = section.source.to_string();
        Ok(Arc::new(Self { volume, name, tasks: Mutex::default() }))
    }

    /// What can be known without a connection.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub(crate) fn trial(
        section: &VolumeSection,
        lun: &LunSection,
        warnings: &mut Vec<String>,
    ) -> Result<(), String> {
        match &section.source {
            VolumeSource::Url(_) => location(section, &lun.place, warnings).map(drop),
            VolumeSource::Command(_) => Ok(()),
        }
    }

    /// Flushes and disconnects; a server that was started for it is stopped.
    ///
    /// # Errors
    /// That of the flush.
    pub(crate) async fn close(&self) -> Result<(), BlockError> {
        self.volume.close().await
    }

    /// What initiators read and write.
    pub(crate) fn device(&self) -> Device {
        self.volume.device()
    }

    /// Whether anybody is there.
    pub(crate) fn is_connected(&self) -> bool {
        self.volume.connection_count() > 0
    }

    /// Initiators who see it as this LUN are told when it has another size.
    pub(crate) fn serve_as(&self, target: scsi::Target, number: u16) {
        // Until the unit is gone; a volume that is closed has no other size any more.
        let watch =
            self.volume.clone().tell_sizes(move |_| target.capacity_changed(number).is_ok());
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(watch);
    }
}

/// Where it is, with its password.
fn location(
    section: &VolumeSection,
    place: &Place,
    warnings: &mut Vec<String>,
) -> Result<Location, String> {
    let VolumeSource::Url(url) = &section.source else { return Err("has no URL".into()) };
    let mut location: Location = url.parse().map_err(|error| format!("{error}"))?;
    if let (Some(file), Location::Iscsi(url)) = (&section.chap_password_file, &mut location) {
        let secret = from_file(place, file, warnings)?;
        url.password = Some(Secret::new(secret.as_bytes()));
    }
    Ok(location)
}

impl Drop for VolumeLun {
    fn drop(&mut self) {
        let (volume, name) = (self.volume.clone(), std::mem::take(&mut self.name));
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = volume.close().await {
                error!("closing {name}: {error}");
            }
        });
    }
}
