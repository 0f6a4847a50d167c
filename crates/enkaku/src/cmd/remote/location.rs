//! URLs of volumes on a command line, and what the options for a remote volume mean for one that is
//! not behind iSCSI.

use backends::{Location, LocationError};

use super::{Connections, RemoteArgs};
use crate::cmd::Usage;
use crate::cmd::advice::parse_url;

/// A volume's URL, from a command line.
///
/// # Errors
/// What is wrong, and what was perhaps meant.
pub(crate) fn parse_location(text: &str) -> Result<Location, String> {
    match text.parse::<Location>() {
        Ok(location) => Ok(location),
        // The advice of iSCSI's own parser is better than ours.
        Err(LocationError::Iscsi(_)) => Err(parse_url(text).err().unwrap_or_default()),
        Err(LocationError::Scheme(_)) if !Location::is_meant(text) => {
            Err(parse_url(text).err().unwrap_or_default())
        }
        Err(error) => Err(error.to_string()),
    }
}

impl RemoteArgs {
    /// An option that was given and is for iSCSI only.
    fn for_iscsi(&self) -> Option<&'static str> {
        let of_iscsi = [
            (self.policy.is_some(), "--policy"),
            (self.path_memory.is_some(), "--path-memory"),
            (self.share.is_some(), "--share"),
            (self.max_rate.is_some(), "--max-rate"),
            (self.background, "--background"),
            (self.chap_password_file.is_some(), "--chap-password-file"),
            (self.chap_optional, "--chap-optional"),
            (self.mutual_user.is_some(), "--mutual-user"),
            (self.isid.is_some(), "--isid"),
            (self.congestion_control.is_some(), "--congestion-control"),
            (self.send_buffer.is_some(), "--send-buffer"),
            (self.receive_buffer.is_some(), "--receive-buffer"),
            (self.measuring_time.is_some(), "--measuring-time"),
        ];
        let given = of_iscsi.iter().find(|(given, _)| *given).map(|(_, option)| *option);
        given.or(self.bursts.given())
    }

    /// The configuration these options ask for, for an NBD export.
    pub(super) fn nbd(&self) -> anyhow::Result<nbd::client::Config> {
        if let Some(option) = self.for_iscsi() {
            return Err(Usage::error(format!("{option} is for iscsi:// volumes, not for NBD")));
        }
        let mut config = nbd::client::Config {
            replacement_timeout: self.replacement_timeout,
            shared: self.shared,
            ..nbd::client::Config::default()
        };
        if let Connections::Fixed(n) = self.connections {
            let most = nbd::client::CONNECTIONS_MAX;
            if usize::from(n) > most {
                let why = format!("--connections {n}: over NBD at most {most}");
                return Err(Usage::error(why));
            }
            config.connections = n.into();
        }
        Ok(config)
    }

    /// Ceph's client knows none of these options: it has its own configuration.
    pub(super) fn check_for_rbd(&self) -> anyhow::Result<()> {
        let connections = matches!(self.connections, Connections::Fixed(_));
        let given = self.for_iscsi().or(connections.then_some("--connections"));
        match given {
            Some(option) => Err(Usage::error(format!(
                "{option} is for volumes behind iSCSI or NBD, not for images of Ceph: those are \
                 reached as Ceph's configuration says"
            ))),
            None => Ok(()),
        }
    }
}
