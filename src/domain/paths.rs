//! Which names a file of an artifact may have. Admission, publication, pulls and exports share this one rule, so that
//! what one of them lets in the next one takes.

/// A longer path would not fit below the directories where engines and people put releases.
pub const LONGEST_PATH: usize = 1024;
/// The longest name that common file systems take.
const LONGEST_PART: usize = 255;

/// Names that git or git-lfs read as instructions.
const INSTRUCTIONS: [&str; 4] = [".git", ".gitattributes", ".gitmodules", ".lfsconfig"];
/// What NTFS calls them by: the first six letters, `~` and a digit.
const SHORT: [&str; 4] = ["git", "gitatt", "gitmod", "lfscon"];
/// What NTFS calls them by when that is taken: two letters and a digest of the name.
const SHORT_WITH_DIGEST: [&str; 4] = ["gi2837", "gi7d29", "gi7eba", "lfd659"];

/// Why a relative path may not be that of a file in an artifact.
pub fn path_fault(path: &str) -> Option<&'static str> {
    if path.len() > LONGEST_PATH {
        return Some("its path is longer than 1,024 bytes");
    }
    path.split('/').find_map(name_fault)
}

/// Why a name may not be part of such a path.
pub fn name_fault(name: &str) -> Option<&'static str> {
    if matches!(name, "" | "." | "..") {
        return Some("its path is not a plain relative one");
    }
    if name.len() > LONGEST_PART {
        return Some("its name is longer than 255 bytes");
    }
    if name.chars().any(char::is_control) {
        return Some("its name holds a control character");
    }
    if name.contains('\\') {
        return Some("its name holds a backslash");
    }
    is_instruction(name).then_some("git or git-lfs would read a file of this name as instructions")
}

/// Whether some file system takes the name for one of [`INSTRUCTIONS`]: as those do that do not see some characters, do
/// not tell upper from lower case, drop dots and spaces at the end, read a stream's name after a colon, or have a second,
/// short name for every file.
fn is_instruction(name: &str) -> bool {
    let seen: String = name
        .chars()
        .filter(|c| !is_unseen(*c))
        .flat_map(char::to_lowercase)
        // The other letter whose upper case is S.
        .map(|c| if c == '\u{17f}' { 's' } else { c })
        .collect();
    let file = seen.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    INSTRUCTIONS.contains(&file) || is_short_name(file)
}

fn is_short_name(name: &str) -> bool {
    let Some((letters, digits)) = name.split_once('~') else {
        return false;
    };
    let numbered = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    // More digits take the place of letters.
    let cut = |full: &&str| name.len() == 8 && !letters.is_empty() && full.starts_with(letters);
    numbered && (SHORT.contains(&letters) || SHORT_WITH_DIGEST.iter().any(cut))
}

/// Characters that some file systems pass over when they compare names: those of HFS+, and all that Unicode calls
/// ignorable by default.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disguise_of_gits_own_names_is_seen() {
        for name in [
            ".git",
            ".GIT",
            ".Git ",
            ".git.",
            ".git . .",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git\u{e0100}",
            ".git::$INDEX_ALLOCATION",
            ".git:stream",
            "git~1",
            "GIT~1",
            "git~12",
            "git~1.",
            ".gitattributes",
            ".GITATTRIBUTES ",
            ".gitattribute\u{17f}",
            "gitatt~1",
            "gi7d29~1",
            ".gitmodules..",
            "gitmod~4",
            "gi7eba~1",
            "g~100000",
            ".lfsconfig",
            ".LFSCONFIG",
            "LFSCON~1",
            "lfd659~2",
            "\u{ad}.l\u{200b}fsconfig",
        ] {
            assert!(name_fault(name).is_some(), "{name:?}");
            assert!(path_fault(&format!("skills/a/{name}/config")).is_some(), "{name:?}");
        }
    }

    #[test]
    fn ordinary_names_are_let_through() {
        for name in [
            ".gitignore",
            ".github",
            ".gitkeep",
            ".git-credentials",
            "git",
            "gitea",
            "git~",
            "git~x",
            "backup~1",
            "g~1",
            "notes about .git.md",
            "model-00001-of-00002.safetensors",
            "naïve ☃.txt",
            "a:b",
        ] {
            assert_eq!(name_fault(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_path_is_relative_plain_and_short() {
        for path in [
            "", "/", "/a", "a//b", "a/", "./a", "a/../b", "..", "a\\b", "a\nb", "a/\u{7f}",
        ] {
            assert!(path_fault(path).is_some(), "{path:?}");
        }
        assert!(path_fault(&"a/".repeat(600)).is_some());
        assert!(path_fault(&"a".repeat(256)).is_some());
        assert_eq!(path_fault(&format!("{}/x", "a".repeat(255))), None);
    }
}
