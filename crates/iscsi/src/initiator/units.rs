//! Which logical units a target has, and what each of them is: REPORT LUNS, INQUIRY and READ
//! CAPACITY over a session of one connection, which ends then. For lists: a unit that is to be used
//! is probed (`probe`).

use bytes::Bytes;
use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::initiator::{self as core, Command, Established, Event, Session, TaskOutcome};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::TaskAttribute;
use iscsi_proto::serial::StatSn;
use iscsi_proto::time::Instant;

use super::Config;
use super::cdb::{self, Capacity, Cdb, Inquiry};
use super::connect::{ConnectError, Identity, Link, connect_again};
use super::discovery::{exchange, log_out};
use super::sense::{Sense, status};
use super::url::{Portal, wire_lun};

/// Units that are asked for: the list of a target with thousands is nothing to read.
const UNITS_MAX: u32 = 256;

/// Bytes before the first LUN of a list, and of a LUN (SPC-4 §6.33).
const LIST_HEADER_LEN: u32 = 8;
const LUN_LEN: u32 = 8;

/// Bytes of READ CAPACITY (16) and (10).
const CAPACITY16_LEN: u32 = 32;
const CAPACITY10_LEN: u32 = 8;

/// Unit attentions that may come before an answer.
const ATTENTIONS_MAX: u32 = 32;

/// UNIT ATTENTION (SPC-4 §4.5.6).
const UNIT_ATTENTION: u8 = 0x6;

/// A logical unit that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitFound {
    /// Its number.
    pub lun: u16,
    /// Peripheral device type (SPC-4 §6.6.2): 0 is a disk.
    pub kind: u8,
    /// Vendor.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Bytes, and bytes a block, of a disk that tells them.
    pub size: Option<(u64, u32)>,
}

/// The units of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitsFound {
    /// Those that were asked what they are, by number.
    pub units: Vec<UnitFound>,
    /// There are more, which were not asked.
    pub more: bool,
}

/// Asks the target of this name at a portal for its units.
///
/// # Errors
/// [`ConnectError`].
pub async fn units(
    portal: &Portal,
    target: &str,
    config: &Config,
) -> Result<UnitsFound, ConnectError> {
    let seconds = config.login_timeout.as_secs();
    let timed_out = || ConnectError::TimedOut { portal: portal.clone(), seconds };
    tokio::time::timeout(config.login_timeout, list(portal, target, config))
        .await
        .map_err(|_| timed_out())?
}

async fn list(portal: &Portal, target: &str, config: &Config) -> Result<UnitsFound, ConnectError> {
    let mut bits = [0; 4];
    getrandom::fill(&mut bits).map_err(ConnectError::Random)?;
    let identity = Identity {
        target: Some(target.to_owned()),
        isid: Isid::random(u32::from_be_bytes(bits), 0),
        cid: Cid(1),
        joining: None,
        exp_stat_sn: StatSn(0),
    };
    // PDUs are read one by one here, without digests, and what breaks is not recovered.
    let config = config.clone().digests(DigestPreference::Never, DigestPreference::Never);
    let config = config.error_recovery_level(0);
    let link = connect_again(portal, &config, config.chap.as_ref(), &identity).await?;
    let (session, id) = Session::new(
        core::Config::default(),
        &Established::from(&link.outcome),
        Instant::default(),
    );
    let mut asker = Asker { link, session, id, portal };
    let found = asker.all().await;
    log_out(&mut asker.link, &mut asker.session, asker.id, portal).await;
    found
}

/// One session, and one command at a time.
struct Asker<'a> {
    link: Link,
    session: Session<()>,
    id: core::ConnectionId,
    portal: &'a Portal,
}

impl Asker<'_> {
    async fn all(&mut self) -> Result<UnitsFound, ConnectError> {
        let len = LIST_HEADER_LEN + UNITS_MAX * LUN_LEN;
        let answer = self.ask(0, cdb::report_luns(len), len).await?;
        let answer = answer.ok_or_else(|| self.failed("REPORT LUNS was refused"))?;
        let (mut luns, more) = cdb::luns(&answer);
        luns.sort_unstable();
        luns.dedup();
        let mut found = UnitsFound { more, ..UnitsFound::default() };
        for lun in luns {
            found.units.extend(self.unit(lun).await?);
        }
        Ok(found)
    }

    /// `None` where there is none after all.
    async fn unit(&mut self, lun: u16) -> Result<Option<UnitFound>, ConnectError> {
        let len = u32::from(cdb::ALLOCATION_LEN);
        let answer = self.ask(lun, cdb::inquiry(None), len).await?;
        let Some(inquiry) = answer.as_deref().and_then(Inquiry::parse) else { return Ok(None) };
        // A qualifier of 001b or 011b: nothing is connected there.
        if inquiry.peripheral & 0xe0 != 0 {
            return Ok(None);
        }
        let size = match inquiry.peripheral {
            0 => self.capacity(lun).await?,
            _ => None,
        };
        let Inquiry { peripheral: kind, vendor, product, .. } = inquiry;
        Ok(Some(UnitFound { lun, kind, vendor, product, size }))
    }

    async fn capacity(&mut self, lun: u16) -> Result<Option<(u64, u32)>, ConnectError> {
        let long = self.ask(lun, cdb::read_capacity16(), CAPACITY16_LEN).await?;
        let capacity = match long {
            Some(data) => Capacity::parse16(&data),
            None => {
                let short = self.ask(lun, cdb::read_capacity10(), CAPACITY10_LEN).await?;
                short.and_then(|data| Capacity::parse10(&data))
            }
        };
        Ok(capacity.and_then(|Capacity { blocks, block_len, .. }| {
            Some((blocks.checked_mul(block_len.into())?, block_len))
        }))
    }

    /// The data of a command, `None` if the unit refuses it.
    async fn ask(&mut self, lun: u16, cdb: Cdb, len: u32) -> Result<Option<Vec<u8>>, ConnectError> {
        for _ in 0..=ATTENTIONS_MAX {
            let mut data = vec![0; len as usize];
            let (status, sense) = self.command(lun, cdb, &mut data).await?;
            match status {
                status::GOOD => return Ok(Some(data)),
                status::CHECK_CONDITION if Sense::parse(&sense).key == UNIT_ATTENTION => {}
                _ => return Ok(None),
            }
        }
        Err(self.failed("no end of unit attentions"))
    }

    /// Status and sense of a command, its data in `data`, and zeroes where none came.
    async fn command(
        &mut self,
        lun: u16,
        cdb: Cdb,
        data: &mut [u8],
    ) -> Result<(u8, Bytes), ConnectError> {
        let command = Command {
            lun: wire_lun(lun),
            cdb,
            data_out: Bytes::new(),
            data_in_len: data.len() as u32,
            attribute: TaskAttribute::SIMPLE,
        };
        if let Err((error, ..)) = self.session.submit(command, ()) {
            return Err(self.failed(&error.to_string()));
        }
        loop {
            exchange(&mut self.link, &mut self.session, self.id, self.portal, data).await?;
            while let Some(event) = self.session.poll_event() {
                match event {
                    Event::TaskDone { outcome, .. } => match outcome {
                        TaskOutcome::Completed { status, sense, .. } => return Ok((status, sense)),
                        other => return Err(self.failed(&format!("a command ended: {other:?}"))),
                    },
                    Event::TaskRequeue { .. } => {
                        return Err(self.failed("the connection ended during a command"));
                    }
                    Event::SessionEnded { error } => {
                        let reason = error.map(|error| error.to_string());
                        return Err(self.failed(reason.as_deref().unwrap_or("logged out")));
                    }
                    _ => {}
                }
            }
        }
    }

    fn failed(&self, reason: &str) -> ConnectError {
        ConnectError::Discovery { portal: self.portal.clone(), reason: reason.to_owned() }
    }
}
