//! Which files of an artifact go through git LFS, and the `.gitattributes` that tells stock git the same.

use std::fmt::Write;

/// Suffixes of weight files; these go through LFS whatever their size.
const WEIGHTS: [&str; 9] = ["safetensors", "bin", "gguf", "pt", "pth", "ckpt", "onnx", "npz", "npy"];

/// The file that carries the rules in every tree.
pub(super) const NAME: &str = ".gitattributes";

/// Whether a file goes through LFS: by suffix, or because it is over `threshold` bytes.
pub(super) fn is_large(path: &str, size: u64, threshold: u64) -> bool {
    size > threshold || by_suffix(path)
}

fn by_suffix(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.')
        .is_some_and(|(_, suffix)| WEIGHTS.contains(&suffix))
}

/// The `.gitattributes` of a tree. Plain files are `-text`, so that a clone gives back the same bytes whatever
/// `core.autocrlf` says; files that are large without a weight suffix get a line each.
pub(super) fn render<'a>(large: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from("* -text\n");
    for suffix in WEIGHTS {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "*.{suffix} filter=lfs diff=lfs merge=lfs -text");
    }
    for path in large.filter(|path| !by_suffix(path)) {
        let _infallible = writeln!(text, "{} filter=lfs diff=lfs merge=lfs -text", pattern(path));
    }
    text
}

/// What is wrong with the rules of a tree that came from elsewhere: git in a clone would follow any other attribute.
pub(super) fn fault(text: &str) -> Option<String> {
    let known = |line: &str| {
        [" -text", " filter=lfs diff=lfs merge=lfs -text"]
            .into_iter()
            .any(|rule| {
                line.strip_suffix(rule).is_some_and(|pattern| {
                    is_quoted(pattern) || (pattern.starts_with('*') && !pattern.contains(char::is_whitespace))
                })
            })
    };
    let (at, line) = text.lines().enumerate().find(|(_, line)| !known(line))?;
    let shown: String = line.chars().take(80).flat_map(char::escape_debug).collect();
    Some(format!("its line {} is not one that a release has: {shown}", at + 1))
}

/// Whether this is one path in quotes and nothing after it.
fn is_quoted(pattern: &str) -> bool {
    let Some(inner) = pattern.strip_prefix("\"/").and_then(|rest| rest.strip_suffix('"')) else {
        return false;
    };
    let mut escaped = false;
    for c in inner.chars() {
        match c {
            '"' if !escaped => return false,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    !escaped
}

/// An attribute pattern that fits exactly this path: anchored, glob characters escaped, quoted as C strings are.
fn pattern(path: &str) -> String {
    let mut out = String::from("\"/");
    for c in path.chars() {
        match c {
            '*' | '?' | '[' | ']' => {
                out.push_str("\\\\");
                out.push(c);
            }
            '\\' => out.push_str("\\\\\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_big_files_are_large() {
        assert!(is_large("a/adapter_model.safetensors", 10, 100));
        assert!(is_large("tokenizer.json", 101, 100));
        assert!(!is_large("tokenizer.json", 100, 100));
        assert!(!is_large("safetensors", 10, 100));
    }

    #[test]
    fn patterns_are_exact() {
        assert_eq!(pattern("a b.json"), "\"/a b.json\"");
        assert_eq!(pattern("a[1]*.json"), "\"/a\\\\[1\\\\]\\\\*.json\"");
        let text = render(["x.gguf", "d/tokenizer.json"].into_iter());
        assert!(
            text.ends_with("\"/d/tokenizer.json\" filter=lfs diff=lfs merge=lfs -text\n"),
            "{text}"
        );
        assert!(!text.contains("x.gguf"));
    }

    #[test]
    fn only_rules_that_a_release_has_are_let_in() {
        let odd = "d/a b [1]*\\ \"x\".json";
        assert_eq!(fault(&render(["x.gguf", "d/tokenizer.json", odd].into_iter())), None);
        for line in [
            "* filter=evil",
            "*.md filter=lfs diff=lfs merge=lfs -text filter=evil",
            "*.md filter=evil -text",
            "\"/a\" filter=evil \"/b\" -text",
            "[attr]x -text",
            "",
        ] {
            let text = format!("* -text\n{line}\n");
            assert!(fault(&text).is_some(), "{line:?}");
        }
    }
}
