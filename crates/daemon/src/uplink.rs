//! The servers that the daemon calls (`[[uplink]]`), and what comes over that: connections that are
//! served as those of a portal are. [`uplink`] knows how.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iscsi::target::Server;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uplink::home::{self, Deliver, Standing};

use crate::config::{Config, UplinkSection};

/// Those that are kept up.
#[derive(Default)]
pub(crate) struct Uplinks(Mutex<BTreeMap<String, Running>>);

/// One of them.
struct Running {
    section: UplinkSection,
    standing: watch::Receiver<Standing>,
    keeping: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// How one stands.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) standing: Standing,
}

impl Uplinks {
    /// Calls whom the configuration names. One that is as before is not disturbed; connections of
    /// any that ends go on.
    pub(crate) fn set(&self, config: &Config, server: &Arc<Server>) {
        let mut running = self.lock();
        running.retain(|name, one| {
            let same = config.uplinks.iter().find(|section| section.name == *name);
            same.is_some_and(|section| section.is_same(&one.section))
        });
        for section in &config.uplinks {
            running.entry(section.name.clone()).or_insert_with(|| keep(section, server));
        }
    }

    /// How they stand.
    pub(crate) fn views(&self) -> Vec<View> {
        let running = self.lock();
        let views = running.iter().map(|(name, one)| View {
            name: name.clone(),
            server: one.section.server.clone(),
            standing: one.standing.borrow().clone(),
        });
        views.collect()
    }

    /// Calls nobody any more.
    pub(crate) fn stop(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep(section: &UplinkSection, server: &Arc<Server>) -> Running {
    let config = home::Config {
        server: section.server.clone(),
        pin: section.pin,
        identity: Arc::clone(&section.identity),
    };
    let (name, server) = (section.name.clone(), Arc::downgrade(server));
    let deliver: Deliver = Arc::new(move |stream, peer| {
        if let Some(server) = server.upgrade() {
            server.serve(&name, stream, peer);
        }
    });
    let (tell, standing) = watch::channel(Standing::default());
    let keeping = tokio::spawn(home::keep(config, deliver, tell));
    Running { section: section.clone(), standing, keeping }
}
