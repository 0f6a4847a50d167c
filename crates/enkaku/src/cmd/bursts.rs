//! Options for what is offered in the login about the data of writes (RFC 7143 §13.10 to §13.17),
//! of either role. What both ends agree on is in `enkaku info`.

use iscsi_proto::keys::Offer;
use wanlab::units;

use super::Usage;

/// Lengths that may be offered (§13.13, §13.14): 512 to 2^24 - 1.
const LENGTH: std::ops::RangeInclusive<u64> = 512..=(1 << 24) - 1;

/// What is offered about bursts. An option that is left out leaves the role's own offer as it is.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Keys offered in the login (RFC 7143 §13)")]
pub(crate) struct BurstArgs {
    /// FirstBurstLength: most data of a write that go out unasked [default: 256k, or --max-burst
    /// where that is less].
    #[arg(long, value_name = "SIZE", value_parser = parse_length)]
    first_burst: Option<u32>,
    /// MaxBurstLength: most data that one R2T asks for, or a Data-In sequence brings [default: 16M
    /// less 4k].
    #[arg(long, value_name = "SIZE", value_parser = parse_length)]
    max_burst: Option<u32>,
    /// InitialR2T: yes demands that a write's data are asked for, but for immediate data.
    #[arg(long, value_name = "yes|no", value_parser = parse_yes_no, action = clap::ArgAction::Set)]
    initial_r2t: Option<bool>,
    /// MaxOutstandingR2T: most R2Ts of a write under way at once [default: 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_outstanding_r2t: Option<u16>,
    /// ImmediateData: no forbids data in the PDU of a write's command.
    #[arg(long, value_name = "yes|no", value_parser = parse_yes_no, action = clap::ArgAction::Set)]
    immediate_data: Option<bool>,
}

impl BurstArgs {
    /// The first option that was given, by its name.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            (self.first_burst.is_some(), "--first-burst"),
            (self.max_burst.is_some(), "--max-burst"),
            (self.initial_r2t.is_some(), "--initial-r2t"),
            (self.max_outstanding_r2t.is_some(), "--max-outstanding-r2t"),
            (self.immediate_data.is_some(), "--immediate-data"),
        ];
        all.iter().find(|(given, _)| *given).map(|(_, name)| *name)
    }

    /// Puts what was asked for into an offer.
    pub(crate) fn apply(&self, offer: &mut Offer) -> anyhow::Result<()> {
        let session = &mut offer.session;
        if let Some(bytes) = self.max_burst {
            session.max_burst_length = bytes;
            // Nobody asked for this one, and above the other it may not be (§13.14).
            session.first_burst_length = session.first_burst_length.min(bytes);
        }
        if let Some(bytes) = self.first_burst {
            if bytes > session.max_burst_length {
                return Err(Usage::error(format!(
                    "--first-burst {bytes}: at most --max-burst, which is {}",
                    session.max_burst_length
                )));
            }
            session.first_burst_length = bytes;
        }
        session.initial_r2t = self.initial_r2t.unwrap_or(session.initial_r2t);
        session.immediate_data = self.immediate_data.unwrap_or(session.immediate_data);
        if let Some(most) = self.max_outstanding_r2t {
            session.max_outstanding_r2t = most;
        }
        Ok(())
    }
}

fn parse_length(text: &str) -> Result<u32, String> {
    let bytes = units::parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(length) if LENGTH.contains(&bytes) => Ok(length),
        _ => Err(format!("{text:?} is not from {} to {} bytes", LENGTH.start(), LENGTH.end())),
    }
}

fn parse_yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{text:?} is not yes or no")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(args: BurstArgs) -> Result<Offer, String> {
        let mut offer = Offer::default();
        args.apply(&mut offer).map(|()| offer).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_stays_as_it_is() {
        assert_eq!(offered(BurstArgs::default()), Ok(Offer::default()));
    }

    #[test]
    fn a_first_burst_is_never_offered_above_the_longest_one() {
        let short = BurstArgs { max_burst: Some(65_536), ..BurstArgs::default() };
        let session = offered(short).unwrap().session;
        assert_eq!((session.first_burst_length, session.max_burst_length), (65_536, 65_536));
        let wrong = BurstArgs { first_burst: Some(131_072), ..short };
        let said = offered(wrong).unwrap_err();
        assert!(said.contains("131072") && said.contains("which is 65536"), "{said}");
    }

    #[test]
    fn every_key_is_offered_as_asked() {
        let args = BurstArgs {
            first_burst: Some(4 << 20),
            max_burst: Some(4 << 20),
            initial_r2t: Some(true),
            max_outstanding_r2t: Some(3),
            immediate_data: Some(false),
        };
        let session = offered(args).unwrap().session;
        assert_eq!((session.first_burst_length, session.max_burst_length), (4 << 20, 4 << 20));
        assert!(session.initial_r2t && !session.immediate_data);
        assert_eq!(session.max_outstanding_r2t, 3);
    }

    #[test]
    fn lengths_are_those_of_the_rfc() {
        assert_eq!(parse_length("4M"), Ok(4 << 20));
        assert_eq!(parse_length("16777215"), Ok((1 << 24) - 1));
        assert!(parse_length("16M").is_err() && parse_length("511").is_err());
        assert!(parse_length("-1").is_err() && parse_yes_no("true").is_err());
    }
}
