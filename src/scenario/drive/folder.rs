//! The folder that holds the files of one step: its name, and how it is known again.

use std::path::Path;

use crate::domain::BatchId;

/// Digits a number of a step has at least.
const DIGITS: usize = 6;

/// The number, a dash, the batch.
pub(super) fn name(step: u64, batch: &BatchId) -> String {
    format!("{step:0DIGITS$}-{}", batch.as_str().replace(':', "_"))
}

/// Whether a path is named so.
pub(super) fn is_of_a_step(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split_once('-')).is_some_and(|(step, batch)| {
        step.len() >= DIGITS && step.bytes().all(|b| b.is_ascii_digit()) && !batch.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_given_is_known_again_and_no_other() {
        let batch = BatchId::new("s:instruction:a-1").unwrap();
        assert_eq!(name(7, &batch), "000007-s_instruction_a-1");
        for step in [0, 7, 999_999, 12_345_678] {
            assert!(is_of_a_step(&Path::new("work/s").join(name(step, &batch))), "{step}");
        }
        for other in ["carried", "000007", "000007-", "7-batch", "00000x-batch", "-batch", ""] {
            assert!(!is_of_a_step(Path::new(other)), "{other}");
        }
    }
}
