//! `enkaku media`: videos of volumes on a page.

mod demo;
mod directory;
mod share;
mod uplink;
mod user;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use backends::{FORMS, Location};
use block::Device;
use discovery::ldap::Address;
use files::Name;
use iscsi::initiator::{Config as IscsiConfig, Secret};
use media::{
    Admission, ChangeError, Config, DirectoryJob, HomeSpec, Job, Opening, Origin, Outcome, Place,
    Put, Server, ServerError, StateFolder, Tls, publish, put,
};
use path::PolicyConfig;
use wanlab::units;

use self::directory::{SourceArgs, ToldArgs};
use super::remote::{initiator_name, parse_location};
use super::{
    Usage, complain, image, one_line, read_secret, run_async, say, socket_address, stop_signal,
};

/// Port that is listened on unless another one is named.
const PORT: u16 = 8080;

/// How long a request waits for storage that has gone before it fails. A player has some seconds
/// in advance, and its page wants to say what is going on.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows the videos of volumes on a page: finds them (publish), and plays them (serve).
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Serve(ServeArgs),
    Publish(PublishArgs),
    User(user::Args),
    Share(share::Args),
    Uplink(uplink::Args),
    Demo(Box<demo::Args>),
}

/// Serves the page of a catalogue, and its videos, until interrupted.
///
/// Who may watch has an account (enkaku media user). Without any, only this machine is served. A
/// volume is opened when somebody wants a video of it, and let go when nobody does. Changes of the
/// catalogue are seen.
#[derive(clap::Args, Debug)]
struct ServeArgs {
    /// The catalogue, in TOML (docs/media.md), or ldap://HOST/BASE, a directory
    /// (docs/directory.md).
    #[arg(value_name = "CATALOGUE")]
    catalogue: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
    /// Address to listen on, port 8080 unless given; port 0 takes a free one.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:8080",
          value_parser = parse_listen)]
    listen: SocketAddr,
    /// Name under which browsers come, besides addresses and localhost. May be given several times.
    #[arg(long, value_name = "HOST", value_parser = parse_name)]
    name: Vec<String>,
    /// Most connections of browsers at once; of one address, a quarter of them.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_count)]
    clients: usize,
    /// Most answers at once that read from storage, of up to 8 MiB of memory each.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_count)]
    streams: usize,
    /// Asks nobody for a name: whoever reaches the address sees every video.
    #[arg(long)]
    no_accounts: bool,
    /// Folder of accounts, sessions, positions and links [default: beside the catalogue, as in
    /// films.state for films.toml].
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Certificate and those between it and a known one, in PEM: the page is served by HTTPS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key in PEM, in a file that nobody else can read.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// HTTPS with a certificate of our own, which browsers warn of once: compare the fingerprint.
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Address that storage calls which nobody can call, as behind NAT (enkaku media uplink), port
    /// 3270 unless given.
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_uplink)]
    uplink: Option<SocketAddr>,
    /// How long a volume stays open when nobody wants anything of it.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    idle: Duration,
    #[command(flatten)]
    opening: OpeningArgs,
}

/// Finds the videos of a volume, and tells of them in a catalogue.
///
/// ffprobe says what is in each, ffmpeg draws a picture; subtitles beside them (.srt, .vtt) are
/// noted. The volume is only read. What has not changed is not looked at again, and what a person
/// wrote into the catalogue stays.
#[derive(clap::Args, Debug)]
struct PublishArgs {
    #[arg(value_name = "VOLUME", value_parser = parse_volume, help = format!(
        "Where the videos are: {FORMS}, or the path of an image or block device"
    ))]
    volume: Place,
    /// Videos, and folders in which all of them are meant, from the root of the volume.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// The catalogue, which is made if it is not there.
    #[arg(long, value_name = "FILE", required_unless_present = "directory")]
    catalogue: Option<PathBuf>,
    #[command(flatten)]
    told: ToldArgs,
    /// What viewers see as the name of the volume [default: the label of its file system].
    #[arg(long, value_name = "NAME")]
    home: Option<String>,
    /// Number of the partition [default: the one with a file system that can be read].
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// File whose first line is the CHAP password of the URL's user.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Word by which the videos are found, too. May be given several times.
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    #[command(flatten)]
    opening: OpeningArgs,
}

/// Where accounts and links are kept.
#[derive(clap::Args, Debug)]
struct StateArgs {
    /// The catalogue that the server serves.
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,
    /// Folder of accounts and links [default: beside the catalogue, as in films.state for
    /// films.toml].
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
}

/// How volumes are opened.
#[derive(clap::Args, Debug)]
struct OpeningArgs {
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    initiator_name: Option<String>,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    socket_address(text, PORT).ok_or_else(|| {
        format!("{text:?} is not an address, as in 127.0.0.1, 192.0.2.1:8080 or [::]:8080")
    })
}

fn parse_uplink(text: &str) -> Result<SocketAddr, String> {
    socket_address(text, ::uplink::PORT)
        .ok_or_else(|| format!("{text:?} is not an address, as in 192.0.2.1, 0.0.0.0:3270 or [::]"))
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_name = (1..=253).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let told = || format!("{text:?} is not a host's name, as in films.example, without a port");
    is_name.then(|| text.to_owned()).ok_or_else(told)
}

fn parse_count(text: &str) -> Result<usize, String> {
    const MAX: usize = 16_384;
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number from 1 to {MAX}"))
}

fn parse_volume(text: &str) -> Result<Place, String> {
    match text {
        "" => Err("an empty path".into()),
        url if Location::is_meant(url) || url.contains("://") => {
            parse_location(url).map(Place::Url)
        }
        path => Ok(Place::Path(path.into())),
    }
}

/// Runs the command; call it before the process has a second thread.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Serve(args) => run_async(serve(args)),
        Command::Publish(args) => run_async(publish_all(args)),
        Command::User(args) => user::run(args),
        Command::Share(args) => share::run(&args),
        Command::Uplink(args) => uplink::run(args),
        Command::Demo(args) => demo::run(&args),
    }
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let mut config = Config::new(args.listen, args.opening.opening()?);
    config.names = args.name;
    config.connections_max = args.clients;
    config.streams_max = args.streams;
    config.idle = args.idle;
    let is_kept = !args.no_accounts || args.tls_self_signed || args.uplink.is_some();
    let url = args.catalogue.to_str().filter(|_| is_directory(&args.catalogue));
    // One that is not there is told of below, and gets no folder.
    let folder = match is_kept && (url.is_some() || args.catalogue.is_file()) {
        true => Some(state_folder(&args.catalogue, args.state.as_deref())?),
        false => None,
    };
    let origin = match url {
        Some(url) => Origin::Directory(Box::new(args.source.source(url, &args.opening)?)),
        None => Origin::File(args.catalogue.clone()),
    };
    if let Some(folder) = folder.clone().filter(|_| !args.no_accounts) {
        config.admission = Admission::Accounts(folder);
    }
    config.uplink = args.uplink.zip(folder.clone());
    config.tls = match (&args.tls_cert, &args.tls_key, &folder) {
        (Some(certificate), Some(key), _) => Some(Tls::from_files(certificate, key)),
        (_, _, Some(folder)) if args.tls_self_signed => {
            Some(Tls::self_signed(folder, &own_names(&config)))
        }
        _ => None,
    }
    .transpose()
    .map_err(|error| Usage::error(error.to_string()))?;
    let tls = config.tls.clone();
    let catalogue = args.catalogue.display().to_string();
    let server = Server::bind(config, origin).await.map_err(|error| match error {
        error @ ServerError::NoAccounts(_) => Usage::error(format!(
            "{error}: enkaku media user add NAME --catalogue {catalogue}, or say --no-accounts"
        )),
        ServerError::Catalogue(error) => Usage::error(error.to_string()),
        error => error.into(),
    })?;
    let address = server.address();
    warn_of(address, server.has_accounts(), tls.is_some());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    if let Some(folder) = folder {
        folder.note_address(&url)?;
    }
    if let Some(tls) = tls.filter(|_| args.tls_self_signed) {
        say(format_args!("SHA-256 of the certificate: {}", tls.fingerprint()))?;
    }
    if let Some((address, pin)) = server.uplink() {
        say(format_args!("storage calls {address}, where the pin is {pin}"))?;
    }
    say(format_args!("{url}/"))?;
    server
        .run(async {
            // Without signals there is nothing to wait for.
            let _ = stop_signal().await;
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

/// What others can see who should not.
fn warn_of(address: SocketAddr, has_accounts: bool, is_secure: bool) {
    if address.ip().to_canonical().is_loopback() {
        return;
    }
    if has_accounts && !is_secure {
        complain(
            "warning: passwords and videos cross the network for everybody on their way to read: \
             --tls-cert and --tls-key, or --tls-self-signed, encrypt them",
        );
    }
    if !has_accounts {
        complain(&format!(
            "warning: there are no accounts: whoever reaches {address} sees every video"
        ));
    }
}

/// Names that a certificate of our own is for: those that browsers may come by.
fn own_names(config: &Config) -> Vec<String> {
    let mut names = config.names.clone();
    names.push("localhost".into());
    let address = config.listen.ip().to_canonical();
    let loopback = ["127.0.0.1", "::1"].map(str::to_owned);
    names.extend(loopback);
    if !address.is_unspecified() && !address.is_loopback() {
        names.push(address.to_string());
    }
    names
}

/// Is the catalogue in a directory?
fn is_directory(catalogue: &Path) -> bool {
    catalogue.to_str().is_some_and(Address::is_meant)
}

/// The folder of a catalogue's server.
fn state_folder(catalogue: &Path, folder: Option<&Path>) -> anyhow::Result<StateFolder> {
    if is_directory(catalogue) && folder.is_none() {
        let why = "a catalogue in a directory has no folder beside it: --state FOLDER";
        return Err(Usage::error(why));
    }
    let path = folder.map_or_else(|| StateFolder::of(catalogue), Path::to_owned);
    StateFolder::open(&path)
        .map_err(|error| Usage::error(format!("{error} (another folder: --state FOLDER)")))
}

/// What is wrong with a request is the caller's to mend; of a file, it is told as it is.
fn told(error: ChangeError) -> anyhow::Error {
    match error {
        ChangeError::Wrong(what) => Usage::error(what),
        error => error.into(),
    }
}

impl StateArgs {
    fn folder(&self) -> anyhow::Result<StateFolder> {
        // A mistyped name would get accounts that nobody serves.
        if !is_directory(&self.catalogue) && !self.catalogue.is_file() {
            let shown = self.catalogue.display();
            return Err(Usage::error(format!("there is no catalogue {shown}")));
        }
        state_folder(&self.catalogue, self.state.as_deref())
    }
}

async fn publish_all(args: PublishArgs) -> anyhow::Result<ExitCode> {
    let opening = args.opening.opening()?;
    let place = match args.volume {
        // The catalogue says where from anywhere.
        Place::Path(path) => Place::Path(std::path::absolute(path)?),
        Place::Url(Location::Iscsi(url)) if url.password.is_some() => {
            return Err(Usage::error(
                "a password in the URL, which the catalogue would have to show: put it into a file \
                 for --password-file",
            ));
        }
        url => url,
    };
    let has_user = matches!(&place, Place::Url(Location::Iscsi(url)) if url.user.is_some());
    if args.password_file.is_some() && !has_user {
        let why = "--password-file: VOLUME names no user; write iscsi://USER@HOST/…";
        return Err(Usage::error(why));
    }
    let password_file = args.password_file.map(std::path::absolute).transpose()?;
    // Where only the directory keeps it, a file is there for this time.
    let once = args.catalogue.is_none().then(tempfile::tempdir).transpose()?;
    let of_once = once.as_ref().map(|folder| folder.path().join("catalogue.toml"));
    let is_seeded = of_once.is_some();
    let told = &args.told;
    let directory = told.directory.as_ref().map(|url| -> anyhow::Result<_> {
        Ok((told.client(url)?, told.volume(&place, args.partition)?))
    });
    let directory = directory.transpose()?;
    let job = Job {
        home: HomeSpec {
            name: args.home.unwrap_or_default(),
            place,
            uplink: None,
            partition: args.partition,
            password_file,
        },
        paths: args.paths,
        tags: args.tag,
        catalogue: args.catalogue.or(of_once).unwrap_or_default(),
        opening,
    };
    let mut count = Count::default();
    let tell = |path: &str, outcome: &Outcome| count.tell(path, outcome);
    let put = match directory {
        None => {
            publish(job, tell).await?;
            None
        }
        Some((directory, volume)) => {
            let work = DirectoryJob { job, is_seeded, volume };
            Some(put(&directory, work, tell).await?)
        }
    };
    let Count { published, same, left_out } = count;
    say(format_args!("published {published}, unchanged {same}, left out {left_out}"))?;
    let is_refused = put.as_ref().is_some_and(|put| !put.refused.is_empty());
    if let Some(put) = put {
        tell_of(&put)?;
    }
    Ok(ExitCode::from(u8::from(left_out > 0 || is_refused)))
}

/// Files by what has become of them.
#[derive(Default)]
struct Count {
    published: usize,
    same: usize,
    left_out: usize,
}

impl Count {
    fn tell(&mut self, path: &str, outcome: &Outcome) {
        let path = Name::from(path);
        match outcome {
            Outcome::Published => self.published += 1,
            Outcome::Same => self.same += 1,
            Outcome::WithoutPicture(why) => {
                self.published += 1;
                complain(&format!("warning: {path}: no picture: {why}"));
            }
            Outcome::LeftOut(why) => {
                self.left_out += 1;
                complain(&format!("{path}: left out: {why}"));
            }
            _ => {}
        }
    }
}

/// Says what has become of a directory's entries.
fn tell_of(put: &Put) -> anyhow::Result<()> {
    for (_, why) in &put.refused {
        complain(why);
    }
    let Put { added, changed, removed, same, refused, time, .. } = put;
    let (refused, seconds) = (refused.len(), time.as_secs_f64());
    say(format_args!(
        "directory: added {added}, changed {changed}, removed {removed}, unchanged {same}, \
         refused {refused}, in {seconds:.1} s"
    ))
}

impl OpeningArgs {
    fn initiator_name(&self) -> anyhow::Result<String> {
        match &self.initiator_name {
            Some(name) => initiator_name(name),
            None => Ok(IscsiConfig::default().initiator_name),
        }
    }

    fn opening(&self) -> anyhow::Result<Opening> {
        let mut iscsi = IscsiConfig::default()
            .policy(PolicyConfig::default())
            .replacement_timeout(REPLACEMENT_TIMEOUT);
        // Viewers seek, and what was on its way for the place before takes the line.
        iscsi.aborts_reads = true;
        let mut config = backends::Config { iscsi, ..Default::default() };
        config.iscsi.initiator_name = self.initiator_name()?;
        config.nbd.read_only = true;
        config.nbd.replacement_timeout = REPLACEMENT_TIMEOUT;
        Ok(Opening { volumes: config, path: open_path, secret, uplinks: None })
    }
}

fn open_path(path: &Path) -> Result<Device, String> {
    image::open(path).map_err(|error| one_line(&error))
}

fn secret(path: &Path) -> Result<Secret, String> {
    let secret = read_secret(path).map_err(|error| one_line(&error))?;
    Ok(Secret::new(secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_to_this_machine_unless_told_otherwise() {
        let at = |text: &str| parse_listen(text).map(|address| address.to_string());
        assert_eq!(at("127.0.0.1"), Ok("127.0.0.1:8080".into()));
        assert_eq!(at("[::]:80"), Ok("[::]:80".into()));
        assert!(at("films.example").is_err());
    }

    #[test]
    fn names_have_no_port_and_numbers_have_limits() {
        assert!(parse_name("films.example").is_ok());
        assert!(parse_name("films.example:80").is_err() && parse_name("").is_err());
        assert!(parse_count("0").is_err() && parse_count("16384").is_ok());
    }
}
