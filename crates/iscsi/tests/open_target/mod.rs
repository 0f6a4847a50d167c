//! Who may log in to a target by hand: everybody, here or at the address that they are sent to.

use std::net::SocketAddr;

use iscsi_proto::login::chap::Secret;
use iscsi_proto::login::target::{Admission, Authenticator, Grant};
use iscsi_proto::names::TargetAddress;

/// Grants every login, or redirects all of them.
pub(crate) struct Access {
    pub(crate) moved: Option<SocketAddr>,
}

impl Authenticator for Access {
    fn admit(&self, _: &str, _: Option<&str>) -> Admission {
        match self.moved {
            Some(address) => {
                Admission::Moved { address: TargetAddress::new(address, 1), permanent: false }
            }
            None => Admission::Granted(Grant { portal_group_tag: 1, ..Grant::default() }),
        }
    }

    fn secret(&self, _: Option<&str>, _: &str) -> Option<Secret> {
        None
    }
}
