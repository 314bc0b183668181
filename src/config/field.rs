//! The schema language: what a setting's type accepts, and the [`section!`](crate::config::section) macro that declares
//! a section's settings once, for reading, for `--print-config`, for the reference and for the JSON Schema.

use serde_json::{Value as Json, json};

/// One declared setting.
#[derive(Debug)]
pub struct Field {
    /// Its name within the section, with hyphens.
    pub name: &'static str,
    /// What it accepts.
    pub kind: Kind,
    /// May be left unset.
    pub optional: bool,
    /// Its value is never shown.
    pub secret: bool,
    /// The default as JSON.
    pub default: Option<&'static str>,
    /// The environment variable that sets it, where its name does not follow from the key.
    pub env: Option<&'static str>,
    /// Smallest value allowed.
    pub min: Option<f64>,
    /// Largest value allowed.
    pub max: Option<f64>,
    /// Sentences for the reference, lines as written.
    pub doc: &'static [&'static str],
}

/// What a setting accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// An address that starts with `http://` or `https://`.
    Url,
    /// A path; a relative one starts at the directory Reef was started in.
    Path,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer {
        /// Smallest the type holds.
        min: i64,
        /// Largest the type holds.
        max: i64,
    },
    /// A number.
    Number,
    /// A number of seconds, fractions allowed.
    Seconds,
    /// A number of bytes, or text such as `64MiB`.
    Size,
    /// A list of texts.
    TextList,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A table whose keys belong to someone else.
    Table,
    /// A list of tables.
    TableList,
}

impl Field {
    /// What is expected, for messages and the reference.
    pub fn expected(&self) -> String {
        let bounds = match (self.min, self.max) {
            (Some(min), Some(max)) => format!(" from {min} to {max}"),
            (Some(min), None) => format!(" of at least {min}"),
            (None, Some(max)) => format!(" of at most {max}"),
            (None, None) => String::new(),
        };
        match self.kind {
            Kind::Text => "text".to_owned(),
            Kind::Url => "a URL that starts with http:// or https://".to_owned(),
            Kind::Path => "a path".to_owned(),
            Kind::Bool => "true or false".to_owned(),
            Kind::Integer { min, max } => {
                let min = self.min.map_or(min, |min| min as i64);
                let max = self.max.map_or(max, |max| max as i64);
                if max >= i64::from(u32::MAX) && self.max.is_none() {
                    format!("an integer of at least {min}")
                } else {
                    format!("an integer from {min} to {max}")
                }
            }
            Kind::Number => format!("a number{bounds}"),
            Kind::Seconds => format!("a number of seconds{bounds}"),
            Kind::Size => "a number of bytes, or text such as 64MiB".to_owned(),
            Kind::TextList => "a list of texts".to_owned(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Table => "a table".to_owned(),
            Kind::TableList => "a list of tables".to_owned(),
        }
    }

    /// One word for the type column of the reference.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Text => "text",
            Kind::Url => "URL",
            Kind::Path => "path",
            Kind::Bool => "boolean",
            Kind::Integer { .. } => "integer",
            Kind::Number => "number",
            Kind::Seconds => "seconds",
            Kind::Size => "size",
            Kind::TextList => "list of texts",
            Kind::Choice(_) => "choice",
            Kind::Table => "table",
            Kind::TableList => "list of tables",
        }
    }

    /// The field in JSON Schema.
    pub fn json_schema(&self) -> Json {
        let mut schema = match self.kind {
            Kind::Text | Kind::Url | Kind::Path => json!({"type": "string"}),
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
            Kind::Number | Kind::Seconds => json!({"type": "number"}),
            Kind::Size => json!({"type": ["integer", "string"], "minimum": 0}),
            Kind::TextList => json!({"type": "array", "items": {"type": "string"}}),
            Kind::Choice(words) => json!({"enum": words}),
            Kind::Table => json!({"type": "object"}),
            Kind::TableList => json!({"type": "array", "items": {"type": "object"}}),
        };
        for (name, bound) in [("minimum", self.min), ("maximum", self.max)] {
            if let Some(bound) = bound {
                schema[name] = if bound.fract() == 0.0 {
                    json!(bound as i64)
                } else {
                    json!(bound)
                };
            }
        }
        schema["description"] = self.doc_text().into();
        if let Some(default) = self.default_json() {
            schema["default"] = default;
        }
        schema
    }

    /// The default.
    pub fn default_json(&self) -> Option<Json> {
        serde_json::from_str(self.default?).ok()
    }

    /// The documentation as one paragraph.
    pub fn doc_text(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}

/// Declares a section: a struct with one public field for each setting, and its table of [`Field`]s.
///
/// ```ignore
/// section! {
///     /// What the section is about.
///     pub Storage in "storage" {
///         /// Where Reef keeps its files.
///         dir: PathBuf = ".reef", env "REEF_DIR";
///         /// At most this many days.
///         retention_days: Option<f64>, min 0.0;
///     }
/// }
/// ```
///
/// The type of a field implements [`Setting`](crate::config::Setting); `Option` makes it optional, anything else needs a
/// default, written as a JSON literal.
#[macro_export]
#[doc(hidden)]
macro_rules! __reef_section {
    (
        $(#[doc = $about:literal])+
        pub $name:ident in $path:literal {
            $(
                $(#[doc = $doc:literal])+
                $field:ident : $ty:ty $(= $default:expr)? $(, env $env:literal)? $(, min $min:expr)? $(, max $max:expr)?;
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                pub $field: $ty,
            )*
        }

        /// As `--print-config` shows it: secrets are masked.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &$crate::config::Setting::show(&self.$field)))*
                    .finish()
            }
        }

        impl $crate::config::Section for $name {
            const PATH: &'static str = $path;
            const ABOUT: &'static [&'static str] = &[$($about),+];
            const FIELDS: &'static [$crate::config::Field] = &[
                $(
                    $crate::config::Field {
                        name: stringify!($field),
                        kind: <$ty as $crate::config::Setting>::KIND,
                        optional: <$ty as $crate::config::Setting>::OPTIONAL,
                        secret: <$ty as $crate::config::Setting>::SECRET,
                        default: $crate::__reef_section!(@text $($default)?),
                        env: $crate::__reef_section!(@some $($env)?),
                        min: $crate::__reef_section!(@some $($min)?),
                        max: $crate::__reef_section!(@some $($max)?),
                        doc: &[$($doc),+],
                    },
                )*
            ];

            #[allow(unused_mut, unused_variables, reason = "a section may have no settings yet")]
            fn read(reader: &mut $crate::config::Reader<'_>) -> Option<Self> {
                let mut fields = <Self as $crate::config::Section>::FIELDS.iter();
                $(
                    let $field: Option<$ty> = fields.next().and_then(|field| reader.field(field));
                )*
                Some(Self { $($field: $field?),* })
            }
        }
    };
    (@text) => { None };
    (@text $default:expr) => { Some(stringify!($default)) };
    (@some) => { None };
    (@some $value:expr) => { Some($value) };
}

/// Declares the words of a choice: an enum that is a setting.
///
/// ```ignore
/// choice! {
///     /// Who answers.
///     pub Answerer {
///         /// A provider.
///         Upstream = "upstream",
///     }
/// }
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! __reef_choice {
    (
        $(#[doc = $about:literal])+
        pub $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $variant:ident = $word:literal
            ),+ $(,)?
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(
                $(#[doc = $doc])+
                $variant,
            )+
        }

        impl $name {
            /// The word that stands for it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::config::Setting for $name {
            const KIND: $crate::config::Kind = $crate::config::Kind::Choice(&[$($word),+]);

            fn from_node(node: &$crate::config::Node, _: &std::path::Path) -> Option<Self> {
                match $crate::config::text_of(node)? {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn show(&self) -> serde_json::Value {
                self.as_str().into()
            }
        }
    };
}
