//! Every input under `fuzz/corpus` once more, and every seed whether it is there or not.

use std::fs;
use std::path::Path;

use fuzz_cases::{CASES, seeds};

#[test]
fn nothing_in_the_corpora_breaks_an_invariant() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (name, case) in CASES {
        let folder = corpus.join(name);
        let entries = fs::read_dir(&folder);
        let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let input = fs::read(&path);
            let input = input.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            println!("{}", path.display()); // shown if the case panics
            case(&input);
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }
}

/// The seeds come from the encoders, so they follow a change of the formats; the corpora do not.
#[test]
fn no_seed_breaks_an_invariant() {
    for (name, case) in CASES {
        for (seed, input) in seeds(name) {
            println!("{name}: {seed}");
            case(&input);
        }
    }
}
