//! The three-line text git stores in place of a large file (git-lfs pointer, version 1).

/// A pointer to an LFS object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer {
    /// SHA-256 of the object, 64 hex digits.
    pub oid: String,
    /// Its size in bytes.
    pub size: u64,
}

/// git-lfs reads no pointer longer than this.
pub(super) const MAX_POINTER_BYTES: u64 = 1024;

const VERSION: &str = "version https://git-lfs.github.com/spec/v1";

impl Pointer {
    /// The canonical text.
    pub(super) fn to_text(&self) -> String {
        format!("{VERSION}\noid sha256:{}\nsize {}\n", self.oid, self.size)
    }

    /// Reads a pointer; anything else is a file's own content.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() as u64 >= MAX_POINTER_BYTES {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next()? != VERSION {
            return None;
        }
        let (mut oid, mut size) = (None, None);
        for line in lines {
            match line.split_once(' ')? {
                ("oid", value) => oid = Some(value.strip_prefix("sha256:")?),
                ("size", value) => size = Some(value.parse().ok()?),
                _ => {}
            }
        }
        let oid = oid.filter(|o| is_sha256(o))?;
        Some(Self {
            oid: oid.to_owned(),
            size: size?,
        })
    }
}

/// Whether this is 64 lower-case hex digits.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pointer_survives_its_text() {
        let pointer = Pointer {
            oid: "ab".repeat(32),
            size: 20_971_520,
        };
        let text = pointer.to_text();
        assert_eq!(
            text,
            format!(
                "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 20971520\n",
                "ab".repeat(32)
            )
        );
        assert_eq!(Pointer::parse(text.as_bytes()), Some(pointer));
    }

    #[test]
    fn other_content_is_not_a_pointer() {
        for text in [
            "",
            "version https://git-lfs.github.com/spec/v1\n",
            "version https://git-lfs.github.com/spec/v1\noid sha256:ABCD\nsize 1\n",
            "hello",
        ] {
            assert_eq!(Pointer::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _any = Pointer::parse(&bytes);
        }
    }
}
