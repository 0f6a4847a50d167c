//! `enkaku isns`: a small iSNS server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use discovery::isns::PORT;
use discovery::isns::network::Network;
use discovery::isns::serve::{CONNECTIONS_MAX, Config, Server};
use discovery::isns::server::settings::node_name;
use discovery::isns::server::{DomainsFile, Limits, Settings};

use super::{Usage, say, socket_address, stop_signal};

/// Runs an iSNS server: where targets say that they are, and initiators ask (RFC 4171).
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Serves until interrupted. iSNS proves no names: only for networks that are trusted.
    Serve(ServeArgs),
}

#[derive(clap::Args, Debug)]
struct ServeArgs {
    /// Address to listen on, port 3205 unless given; port 0 takes a free one.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "[::]:3205",
          value_parser = parse_listen)]
    listen: SocketAddr,
    /// File that keeps what is registered over a restart [default: it is forgotten].
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Discovery domains and control nodes, in TOML (docs/isns.md); read once.
    #[arg(long, value_name = "FILE")]
    domains: Option<PathBuf>,
    /// Answer only this network, such as 192.0.2.0/24. May be given several times.
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Name of a node that sees everything and may change domains. May be given several times.
    #[arg(long, value_name = "IQN", value_parser = node_name)]
    control: Vec<String>,
    /// Most hosts that may be registered.
    #[arg(long, value_name = "N", default_value_t = Limits::default().entities_max,
          value_parser = parse_entities)]
    entities: usize,
    /// Most connections at once.
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS_MAX,
          value_parser = parse_connections)]
    connections: usize,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    socket_address(text, PORT).ok_or_else(|| {
        format!("{text:?} is not an address, as in 192.0.2.1, 192.0.2.1:3205 or [::]:3205")
    })
}

fn parse_entities(text: &str) -> Result<usize, String> {
    number(text, 65_536)
}

fn parse_connections(text: &str) -> Result<usize, String> {
    number(text, 16_384)
}

fn number(text: &str, max: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number from 1 to {max}"))
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Serve(args) = args.command;
    let domains = args.domains.as_deref().map(DomainsFile::load).transpose();
    let domains = domains.map_err(Usage::error)?.unwrap_or_default();
    let limits = Limits {
        entities_max: args.entities,
        objects_max: args.entities.max(Limits::default().objects_max),
        ..Limits::default()
    };
    let control: BTreeSet<String> = args.control.into_iter().collect();
    let server = Server::bind(Config {
        listen: args.listen,
        state: args.state,
        allow: args.allow,
        connections_max: args.connections,
        settings: Settings { limits, control, ..Settings::default() },
        domains,
    });
    let server = server.await?;
    say(format_args!("listening on {}", server.local_addr()?))?;
    let stop = async {
        // Without signals there is nothing to wait for.
        let _ = stop_signal().await;
    };
    server.run(stop).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_listen_is_an_address_with_or_without_port() {
        let at = |text: &str| parse_listen(text).map(|address| address.to_string());
        assert_eq!(at("192.0.2.1"), Ok("192.0.2.1:3205".into()));
        assert_eq!(at("[::]"), Ok("[::]:3205".into()));
        assert_eq!(at("127.0.0.1:0"), Ok("127.0.0.1:0".into()));
        assert!(at("isns.example").is_err());
    }

    #[test]
    fn numbers_have_limits() {
        assert_eq!(parse_entities("65536"), Ok(65_536));
        assert!(parse_entities("0").is_err() && parse_connections("x").is_err());
    }
}
