//! What is read of a directory again, and what is left out of it, against one in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use discovery::ldap::{Change, Directory, Entry, Filter, LdapError, Search};

use super::known::Known;

#[derive(Default)]
struct Memory {
    entries: Mutex<BTreeMap<String, Entry>>,
    /// How many whole entries were handed out.
    read: Mutex<usize>,
}

impl Memory {
    fn set(&self, dn: &str, attributes: &[(&str, &str)]) {
        let mut entry = Entry { dn: dn.into(), attributes: BTreeMap::new() };
        for (name, value) in attributes {
            entry.attributes.entry((*name).into()).or_default().push(value.as_bytes().to_vec());
        }
        self.entries.lock().unwrap().insert(dn.into(), entry);
    }

    fn video(&self, name: &str, title: &str, time: &str) {
        let dn = format!("cn={name}");
        let path = format!("/{name}.mp4");
        let of = [("objectclass", "ekVideo"), ("ekvolumeid", "v"), ("modifytimestamp", time)];
        self.set(&dn, &[&of[..], &[("ekpath", &path), ("ektitle", title)]].concat());
    }

    fn read(&self) -> usize {
        std::mem::take(&mut *self.read.lock().unwrap())
    }
}

fn fits(filter: &Filter, entry: &Entry) -> bool {
    let text = |name: &str| entry.text(&name.to_ascii_lowercase()).unwrap_or_default().to_owned();
    match filter {
        Filter::Is(name, value) => text(name) == *value,
        Filter::AtLeast(name, value) => text(name) >= *value,
        Filter::Contains(name, value) => text(name).contains(value),
        Filter::All(all) => all.iter().all(|one| fits(one, entry)),
    }
}

impl Directory for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn base(&self) -> String {
        "dc=example".into()
    }

    async fn search(
        &self,
        wanted: &Search,
        each: &mut (dyn FnMut(Entry) + Send),
    ) -> Result<(), LdapError> {
        for entry in self.entries.lock().unwrap().values() {
            if fits(&wanted.filter, entry) {
                *self.read.lock().unwrap() += usize::from(wanted.attributes.contains(&"*"));
                each(entry.clone());
            }
        }
        Ok(())
    }

    async fn apply(&self, _: Vec<Change>) -> Result<Vec<(String, LdapError)>, LdapError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn what_has_not_changed_is_not_read_again_and_what_is_wrong_is_left_out() {
    let directory = Memory::default();
    let volume =
        [("objectclass", "ekStorage"), ("cn", "attic"), ("ekvolumeid", "v"), ("eklun", "0")];
    let target = [("ekiscsiname", "iqn.2026-11.org.example:films"), ("ekportal", "192.0.2.1")];
    directory.set("cn=attic", &[&volume[..], &target].concat());
    for (name, title) in [("a", "A"), ("b", "B"), ("c", "a\u{7}bell")] {
        directory.video(name, title, "20260101000000Z");
    }
    let (mut known, portals) = (Known::default(), HashMap::new());
    assert!(known.read(&directory).await.unwrap());
    assert_eq!(directory.read(), 4);
    let titles = |known: &mut Known| -> Vec<String> {
        let catalogue = known.catalogue(&portals, None);
        catalogue.videos().iter().map(|video| video.title.clone()).collect()
    };
    assert_eq!(titles(&mut known), ["A", "B"]);
    assert!(!known.read(&directory).await.unwrap());
    assert_eq!(directory.read(), 1, "the volume alone");

    directory.video("b", "New", "20260101000001Z");
    assert!(known.read(&directory).await.unwrap());
    assert_eq!(directory.read(), 2);
    assert_eq!(titles(&mut known), ["A", "New"]);

    directory.entries.lock().unwrap().remove("cn=a");
    assert!(known.read(&directory).await.unwrap());
    assert_eq!((directory.read(), titles(&mut known)), (1, vec!["New".to_owned()]));

    // The same volume twice is one, and a volume that says nothing of a portal needs iSNS.
    directory.set("cn=z", &[&volume[..], &target].concat());
    assert!(known.read(&directory).await.unwrap());
    assert_eq!(titles(&mut known).len(), 1);
    directory.entries.lock().unwrap().remove("cn=z");
    directory.set("cn=attic", &[&volume[..], &target[..1]].concat());
    assert!(known.read(&directory).await.unwrap());
    assert!(titles(&mut known).is_empty());
    let portals = HashMap::from([(target[0].1.to_owned(), "192.0.2.9:3260".to_owned())]);
    let catalogue = known.catalogue(&portals, None);
    assert_eq!(
        catalogue.homes()[0].place.key(),
        "iscsi://192.0.2.9:3260/iqn.2026-11.org.example:films/0"
    );
}
