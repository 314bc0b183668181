//! Law: turns a deployment file, the environment and the command line into settings, each value with its source. Owns
//! the schema and its errors; starts nothing and opens nothing but the file. Door: [`load`], [`Settings`], and
//! [`section!`] for rooms that declare settings of their own. State: none. Fails with a typed error that names file,
//! line and key, never a value; the command line renders it and exits with 2.

mod aliases;
mod error;
mod field;
mod interpolate;
mod load;
mod nearest;
mod reader;
mod reference;
mod schema;
mod setting;
mod settings;
mod sound;
mod source;
mod toml;
mod tree;
mod variables;
mod yaml;

#[doc(inline)]
pub use crate::{__reef_choice as choice, __reef_section as section};
pub use error::{ConfigError, Fault};
pub use field::{Field, Kind};
pub use load::{Override, Sources, load};
pub use nearest::advice;
pub use reader::{Reader, Row, Section};
pub use reference::{json_schema, markdown};
pub use schema::*;
pub use setting::{Secret, Setting, Size, Table, TableList, Url, text_of};
pub use settings::Settings;
pub use source::Source;
pub use toml::read_toml;
pub use tree::Node;
pub use variables::variable;

#[cfg(test)]
mod tests;
