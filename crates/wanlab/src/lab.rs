//! The lab as a value: its namespaces, the lines between them, and whatever runs inside.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::capture::{CaptureConfig, Recorder};
use crate::config::{ConfigError, LabConfig};
use crate::emulator::{Emulator, Plan};
use crate::guardian::{Guardian, Leftover};
use crate::netns::{Namespace, acquire_privilege};
use crate::settings::Settings;
use crate::sys;
use crate::topology::{EmulatorStats, NodeStats, Topology};
use crate::tun::{Port, Tun, set_mtu, set_sysctls, sysctl};

/// One of the namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Where a user's command runs, `10.77.0.1`.
    Near,
    /// Where its peer runs, `10.77.0.2`.
    Far,
    /// A node of a star, from 1: `10.77.0.n`, and `10.78.0.n` on a second network.
    Node(usize),
}

/// Why there is no lab.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// A value that no link can have.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Neither root nor a user namespace.
    #[error("the lab needs root or a user namespace, and {reason}")]
    Privilege {
        /// What stands in the way.
        reason: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A namespace could not be made or entered.
    #[error("network namespace")]
    Namespace {
        /// What the kernel said.
        source: io::Error,
    },
    /// The TUN device could not be made.
    #[error("TUN device (/dev/net/tun)")]
    Tun {
        /// What the kernel said.
        source: io::Error,
    },
    /// The TUN device could not be set up.
    #[error("configuring {what} of the emulated link")]
    Configure {
        /// Which step.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A sysctl could not be read or set.
    #[error("sysctl {name}")]
    Sysctl {
        /// Its dotted name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The capture file could not be made.
    #[error("capture {path}")]
    Capture {
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process or thread of the lab could not be started.
    #[error("starting the lab")]
    Start(#[from] io::Error),
}

/// TCP settings that were in force, as the namespaces themselves say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TcpSettings {
    /// `net.ipv4.tcp_wmem`.
    pub tcp_wmem: String,
    /// `net.ipv4.tcp_rmem`.
    pub tcp_rmem: String,
    /// `net.ipv4.tcp_congestion_control`, which a socket may override.
    pub congestion_control: String,
    /// Other sysctls that were set.
    pub sysctls: BTreeMap<String, String>,
}

impl TcpSettings {
    /// Of the calling thread's namespace, after [`set_sysctls`].
    fn read(config: &LabConfig) -> Result<Self, LabError> {
        let read = |wanted: &crate::Sysctl| Ok((wanted.name.clone(), sysctl(&wanted.path())?));
        Ok(Self {
            sysctls: config.sysctls.iter().map(read).collect::<Result<_, LabError>>()?,
            tcp_wmem: sysctl("net/ipv4/tcp_wmem")?,
            tcp_rmem: sysctl("net/ipv4/tcp_rmem")?,
            congestion_control: sysctl("net/ipv4/tcp_congestion_control")?,
        })
    }
}

/// What to build.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LabSpec {
    /// The lines.
    pub config: LabConfig,
    /// Which namespaces they join.
    pub topology: Topology,
    /// Where every segment is logged, if at all.
    pub capture: Option<CaptureConfig>,
}

/// Network namespaces joined by an emulated link.
///
/// All of it ends with this value, and with this process however that ends: processes inside are
/// killed, then devices and namespaces vanish. Fields are dropped in this order.
#[derive(Debug)]
pub struct Lab {
    _guardian: Guardian,
    emulator: Emulator,
    namespaces: Vec<Namespace>,
    topology: Topology,
    config: LabConfig,
    tcp: Vec<TcpSettings>,
}

impl Lab {
    /// Builds a pair and starts the emulator.
    ///
    /// Needs root. For other users the process enters a user namespace in which it is root, which
    /// the kernel only allows before the process has a second thread.
    ///
    /// # Errors
    /// When a value is out of range, or the kernel refuses a step.
    pub fn new(config: &LabConfig) -> Result<Self, LabError> {
        Self::build(&LabSpec { config: config.clone(), ..LabSpec::default() })
    }

    /// Builds any lab and starts the emulator; see [`Lab::new`].
    ///
    /// # Errors
    /// As [`Lab::new`], and when the capture file cannot be created.
    pub fn build(spec: &LabSpec) -> Result<Self, LabError> {
        Self::build_with(spec, None)
    }

    /// The same, with a file that shall vanish with the lab.
    pub(crate) fn build_with(spec: &LabSpec, leftover: Option<Leftover>) -> Result<Self, LabError> {
        let LabSpec { config, topology, capture } = spec;
        let topology = *topology;
        config.validate()?;
        topology.validate(config)?;
        acquire_privilege()?;
        let ports = topology.ports();
        let namespaces =
            ports.iter().map(|_| Namespace::new()).collect::<Result<Vec<_>, LabError>>()?;
        let guardian = Guardian::start(&namespaces, leftover)?;
        let (mut devices, mut tcp) = (Vec::new(), Vec::new());
        for (number, (namespace, ports)) in namespaces.iter().zip(&ports).enumerate() {
            namespace.run(|| {
                for port in ports {
                    devices.push(Tun::new(*port, config.mtu)?);
                }
                set_sysctls(config, &topology.sides(number))?;
                tcp.push(TcpSettings::read(config)?);
                Ok(())
            })?;
        }
        let recorder = capture.as_ref().map(|capture| {
            Recorder::create(capture, &topology.line_names()).map_err(|source| LabError::Capture {
                path: capture.path.display().to_string(),
                source,
            })
        });
        let emulator = Emulator::start(Plan {
            devices,
            lines: topology.lines(config),
            switches: topology.switches(),
            recorder: recorder.transpose()?,
        })?;
        let config = config.clone();
        Ok(Self { _guardian: guardian, emulator, namespaces, topology, config, tcp })
    }

    /// Changes the lab while traffic flows: lines at once, buffers for new connections.
    ///
    /// # Errors
    /// When the settings do not go with those in force, which then stay, or the kernel refuses
    /// one.
    pub fn set(&mut self, settings: &Settings) -> Result<(), LabError> {
        let config = settings.applied_to(&self.config)?;
        self.topology.validate(&config)?;
        let namespaces = self.namespaces.iter().zip(self.topology.ports()).enumerate();
        for (number, (namespace, ports)) in namespaces {
            let sides = self.topology.sides(number);
            self.tcp[number] = namespace.run(|| {
                if config.mtu != self.config.mtu {
                    set_mtu(&ports, config.mtu)?;
                }
                set_sysctls(&config, &sides)?;
                TcpSettings::read(&config)
            })?;
        }
        let lines = self.topology.lines(&config).into_iter().map(|line| line.config).collect();
        self.emulator.set(lines)?;
        self.config = config;
        Ok(())
    }

    /// A command that will run at one end and dies with the thread that starts it, which therefore
    /// must live as long as the command shall. It knows the addresses: `ENKAKU_NEAR`,
    /// `ENKAKU_FAR`, `ENKAKU_NEAR6`, `ENKAKU_FAR6`; in a star `ENKAKU_NODE`, its number, and
    /// `ENKAKU_NODES`, the nodes' IPv4 addresses, with `ENKAKU_NODES2` those on the second network.
    /// At an end that the lab does not have, it cannot be started.
    pub fn command(&self, end: End, program: impl AsRef<OsStr>) -> Command {
        let namespace = self.index(end).map(|index| self.namespaces[index].raw());
        let parent = std::process::id();
        let mut command = Command::new(program);
        command.envs(self.environment(end));
        let enter = move || {
            sys::set_parent_death_signal(libc::SIGKILL)?;
            // The parent may have died before the line above.
            if std::os::unix::process::parent_id() != parent {
                return Err(io::ErrorKind::NotFound.into());
            }
            sys::enter_network_namespace(namespace.ok_or(io::ErrorKind::AddrNotAvailable)?)
        };
        // SAFETY: `enter` only makes system calls, which is allowed between fork and exec.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// A connection to an address as it is seen at one end, without a delay if it is that end's
    /// own.
    ///
    /// # Errors
    /// When nobody listens there, or the lab has no such end.
    pub fn connect(&self, end: End, to: SocketAddr) -> io::Result<TcpStream> {
        let index = self.index(end).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let connected = self.namespaces[index].run(|| Ok(TcpStream::connect(to)));
        connected.map_err(io::Error::other)?
    }

    /// Which namespace an end is.
    pub(crate) fn index(&self, end: End) -> Option<usize> {
        match (end, self.topology) {
            (End::Near, Topology::Pair) => Some(0),
            (End::Far, Topology::Pair) => Some(1),
            (End::Node(node), Topology::Star { nodes, .. }) if (1..=nodes).contains(&node) => {
                Some(node - 1)
            }
            _ => None,
        }
    }

    /// What tells a command where it is.
    pub(crate) fn environment(&self, end: End) -> Vec<(&'static str, String)> {
        let ports = self.topology.ports();
        match (self.topology, ports.as_slice()) {
            (Topology::Pair, [near, far]) => vec![
                ("ENKAKU_NEAR", near[0].v4.to_string()),
                ("ENKAKU_FAR", far[0].v4.to_string()),
                ("ENKAKU_NEAR6", near[0].v6.to_string()),
                ("ENKAKU_FAR6", far[0].v6.to_string()),
            ],
            (_, ports) => {
                let addresses = |network: usize| {
                    let on: Vec<String> = ports
                        .iter()
                        .filter_map(|ports| ports.get(network))
                        .map(|port: &Port| port.v4.to_string())
                        .collect();
                    on.join(" ")
                };
                let mut environment = vec![("ENKAKU_NODES", addresses(0))];
                if ports.iter().any(|ports| ports.len() > 1) {
                    environment.push(("ENKAKU_NODES2", addresses(1)));
                }
                if let End::Node(node) = end {
                    environment.push(("ENKAKU_NODE", node.to_string()));
                }
                environment
            }
        }
    }

    /// The descriptor of a namespace, by [`Lab::index`].
    pub(crate) fn namespace(&self, index: usize) -> BorrowedFd<'_> {
        self.namespaces[index].fd().as_fd()
    }

    /// The lines as they are now.
    #[must_use]
    pub fn config(&self) -> &LabConfig {
        &self.config
    }

    /// The form of the lab.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// What the emulator has done; at most 10 ms old while packets flow.
    #[must_use]
    pub fn stats(&self) -> EmulatorStats {
        (&self.emulator.totals()).into()
    }

    /// The same for each node of a star, and empty for a pair.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStats> {
        self.topology.nodes(&self.emulator.totals())
    }

    /// The TCP settings of each namespace: near and far, or the nodes.
    #[must_use]
    pub fn tcp_settings(&self) -> &[TcpSettings] {
        &self.tcp
    }

    /// Can be read when the emulator has stopped, which it does by itself only after an error.
    pub(crate) fn emulator_ended(&self) -> BorrowedFd<'_> {
        self.emulator.ended()
    }

    /// Stops the link and returns the final counters.
    #[must_use]
    pub fn stop(mut self) -> EmulatorStats {
        (&self.emulator.stop()).into()
    }
}
