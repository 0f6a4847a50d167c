//! Who is still there: inquiries to portals that asked for them, and the end of entities that were
//! not heard of (RFC 4171 §5.6.5.13, §6.2.6, §6.3.4). Every time is an argument.

use std::time::Duration;

use super::super::attr::{Attr, PortalKey, Tag};
use super::super::message::Notice;
use super::directory::{Directory, Held, Now, number};

/// Inquiries in one interval without an answer, before the portal is gone: at 1, 1¼, 1½ and 1¾
/// intervals; all are to be sent before the second one is over (§6.3.4).
const TRIES: u32 = 4;

/// Intervals that are granted, in seconds: more often would be work without use, more seldom
/// would be no inquiry.
pub(super) const INTERVAL_S: std::ops::RangeInclusive<u32> = 5..=3600;

/// Registration periods that are granted, in seconds: up to a week.
pub(super) const PERIOD_S: std::ops::RangeInclusive<u32> = 5..=604_800;

/// The period of those who ask for none, in seconds: Open-iSNS's own.
pub(super) const PERIOD_DEFAULT_S: u32 = 600;

/// A portal that inquiries are sent to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Monitor {
    pub(super) interval: Duration,
    /// As registered: a TCP port.
    pub(super) port: u32,
    /// When it last answered, or was registered.
    pub(super) answered: Duration,
    /// Inquiries since.
    pub(super) tries: u32,
}

impl Monitor {
    fn next(&self) -> Duration {
        self.answered + self.interval + self.interval / TRIES * self.tries
    }
}

/// An inquiry that is to be sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The entity.
    pub entity: String,
    /// Nodes whose connections lead to it.
    pub nodes: Vec<String>,
    /// Where it is called if no connection comes from there.
    pub callback: PortalKey,
    /// What to say.
    pub notice: Notice,
}

impl Held {
    /// Takes up what the attributes of its portals ask for.
    pub(super) fn set_monitors(&mut self, now: Now) {
        let wanted = self.portals.iter().filter_map(|(key, attrs)| {
            let interval = number(attrs, Tag::ESI_INTERVAL)?;
            let port = number(attrs, Tag::ESI_PORT)?;
            let interval = Duration::from_secs(interval.into());
            (!interval.is_zero() && port != 0)
                .then_some((*key, Monitor { interval, port, answered: now.since_start, tries: 0 }))
        });
        self.monitors = wanted.collect();
    }
}

impl Directory {
    /// Ends what was not heard of in time, and says which inquiries are to be sent.
    pub fn tick(&mut self, now: Now) -> Vec<Inquiry> {
        let mut inquiries = Vec::new();
        let (mut silent, mut expired) = (Vec::new(), Vec::new());
        for (id, entity) in &mut self.entities {
            let period = match number(&entity.attrs, Tag::REGISTRATION_PERIOD).unwrap_or(0) {
                // Those that inquiries alone kept, and whose portals that were asked are gone.
                0 if entity.monitors.is_empty() => PERIOD_DEFAULT_S,
                period => period,
            };
            let limit = Duration::from_secs(period.into());
            if period > 0 && now.since_start.saturating_sub(entity.heard) > limit {
                expired.push(id.clone());
                continue;
            }
            let nodes: Vec<String> = entity.nodes.keys().cloned().collect();
            for (key, monitor) in &mut entity.monitors {
                if now.since_start < monitor.next() {
                    continue;
                }
                if monitor.tries >= TRIES {
                    silent.push((id.clone(), *key));
                    continue;
                }
                monitor.tries += 1;
                let callback = PortalKey { address: key.address, port: monitor.port };
                let [address, port] = Attr::portal(*key);
                let stamp = Attr::new_long(Tag::TIMESTAMP, now.unix_s);
                let attrs = vec![stamp, Attr::new_text(Tag::ENTITY_ID, id), address, port];
                let (entity, nodes) = (id.clone(), nodes.clone());
                inquiries.push(Inquiry { entity, nodes, callback, notice: Notice::Esi { attrs } });
            }
        }
        for id in expired {
            tracing::info!(entity = id, "not heard of for its registration period: removed");
            self.remove(&id, now);
        }
        for (id, key) in silent {
            self.drop_silent(&id, key, now);
        }
        inquiries
    }

    /// A portal has not answered: it is gone, and its entity with the last one that was asked.
    fn drop_silent(&mut self, id: &str, key: PortalKey, now: Now) {
        let Some(entity) = self.entities.get(id) else { return };
        let mut next = entity.clone();
        let interval = next.monitors.remove(&key).map_or(Duration::ZERO, |it| it.interval);
        next.portals.remove(&key);
        next.groups.retain(|(_, portal), _| *portal != key);
        let is_quiet = now.since_start.saturating_sub(next.heard) >= interval * 2;
        if next.monitors.is_empty() && is_quiet {
            tracing::info!(entity = id, portal = %key, "no answer to inquiries: removed");
            self.remove(id, now);
        } else {
            tracing::info!(entity = id, portal = %key, "no answer to inquiries: portal removed");
            self.put(id, next, now);
        }
    }

    /// An inquiry was answered with these attributes.
    pub fn answered(&mut self, attrs: &[Attr], now: Now) {
        let find = |tag| attrs.iter().find(|attr| attr.tag == tag);
        let id = find(Tag::ENTITY_ID).and_then(|attr| attr.text().ok());
        let address = find(Tag::PORTAL_ADDRESS).and_then(|attr| attr.address().ok());
        let port = find(Tag::PORTAL_PORT).and_then(|attr| attr.number().ok());
        let (Some(id), Some(address), Some(port)) = (id, address, port) else { return };
        let Some(entity) = self.entities.get_mut(id) else { return };
        if let Some(monitor) = entity.monitors.get_mut(&PortalKey { address, port }) {
            (monitor.answered, monitor.tries) = (now.since_start, 0);
            entity.heard = now.since_start;
            let stamp = Attr::new_long(Tag::TIMESTAMP, now.unix_s);
            entity.attrs.insert(stamp.tag, stamp.value);
        }
    }
}
