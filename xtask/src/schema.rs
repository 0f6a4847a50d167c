//! The schema of a catalogue in a directory stands twice in contrib/ldap, for slapd's two kinds of
//! configuration: both say the same.

use std::path::Path;

use anyhow::{Context, Result, bail};

const FORMS: [(&str, [(&str, char); 2]); 2] = [
    ("contrib/ldap/enkaku.schema", [("attributetype ", 'a'), ("objectclass ", 'o')]),
    ("contrib/ldap/enkaku.ldif", [("olcAttributeTypes: ", 'a'), ("olcObjectClasses: ", 'o')]),
];

/// The definitions of both forms, which are the same.
///
/// # Errors
/// They are not, or a file cannot be read.
fn check(root: &Path) -> Result<Vec<String>> {
    let read = FORMS.map(|(path, words)| {
        let text = std::fs::read_to_string(root.join(path)).context(path)?;
        Ok::<_, anyhow::Error>(definitions(&text, words))
    });
    let [schema, ldif] = read;
    let (schema, ldif) = (schema?, ldif?);
    for (one, other) in schema.iter().zip(&ldif) {
        if one != other {
            bail!("{} and {} differ:\n{one}\n{other}", FORMS[0].0, FORMS[1].0);
        }
    }
    if schema.len() != ldif.len() {
        bail!("{} definitions in {}, {} in {}", schema.len(), FORMS[0].0, ldif.len(), FORMS[1].0);
    }
    Ok(schema)
}

/// What each definition says, in one line: it goes on where a line begins with white space.
fn definitions(text: &str, words: [(&str, char); 2]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let begun = words.iter().find_map(|(word, kind)| Some((line.strip_prefix(word)?, kind)));
        match begun {
            Some((rest, kind)) => all.push(format!("{kind} {rest}")),
            None if line.starts_with([' ', '\t']) => {
                if let Some(last) = all.last_mut() {
                    *last = format!("{last} {}", line.trim());
                }
            }
            None => {}
        }
    }
    all
}

#[test]
fn both_forms_of_the_schema_say_the_same() {
    let all = check(crate::root()).unwrap();
    let attributes = all.iter().filter(|one| one.starts_with('a')).count();
    assert_eq!((attributes, all.len()), (22, 24), "{all:#?}");
    let mut identifiers: Vec<&str> = all.iter().filter_map(|one| one.split(' ').nth(2)).collect();
    identifiers.sort_unstable();
    identifiers.dedup();
    assert_eq!(identifiers.len(), all.len(), "an object identifier stands for two things");
}
