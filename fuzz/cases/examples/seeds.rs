//! Writes the seeds into `fuzz/corpus`: `cargo run -p fuzz-cases --example seeds`.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (name, _) in fuzz_cases::CASES {
        let folder = corpus.join(name);
        fs::create_dir_all(&folder)?;
        for (seed, input) in fuzz_cases::seeds(name) {
            fs::write(folder.join(seed), input)?;
        }
    }
    Ok(())
}
