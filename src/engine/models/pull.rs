//! Downloads: a GGUF file by URL, or a folder from a hub, resumed where an earlier try stopped and checked by SHA-256.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::error::ModelError;
use super::safetensors_out::StoredDtype;
use super::store::{ModelStore, ModelSummary};
use crate::sys::net::{Cause, Proxies};
use crate::sys::task;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// A server that sends nothing for this long is gone.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Tries per file; each begins where the one before stopped.
const TRIES: u32 = 5;
const MAX_LISTING_BYTES: usize = 8 << 20;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullSource {
    /// One GGUF file.
    File(Url),
    /// A repository of a hub that speaks the Hugging Face API.
    Hub {
        /// `org/name`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
    },
}

impl PullSource {
    /// Reads `https://host/file.gguf` or `hf://org/name[@revision]`.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        if let Some(rest) = text.strip_prefix("hf://") {
            let (repository, revision) = rest.split_once('@').unwrap_or((rest, "main"));
            let plain = |part: &str| {
                !part.is_empty()
                    && !part.starts_with('.')
                    && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            };
            let named = repository
                .split_once('/')
                .is_some_and(|(org, name)| plain(org) && plain(name));
            if named && plain(revision) {
                return Ok(Self::Hub {
                    repository: repository.to_owned(),
                    revision: revision.to_owned(),
                });
            }
            return Err(ModelError::request(format!(
                "{text} is not of the form hf://ORG/NAME or hf://ORG/NAME@REVISION"
            )));
        }
        let url = Url::parse(text)
            .ok()
            .filter(|u| ["http", "https"].contains(&u.scheme()));
        match url {
            Some(url) if url.path().ends_with(".gguf") => Ok(Self::File(url)),
            Some(_) => Err(ModelError::request(format!(
                "{text} does not name a .gguf file; folders come by hf://ORG/NAME"
            ))),
            None => Err(ModelError::request(format!(
                "{text} is neither an http(s) URL nor hf://ORG/NAME"
            ))),
        }
    }

    /// The name a model gets when none is given.
    pub fn default_name(&self) -> String {
        let last = match self {
            Self::File(url) => url
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .trim_end_matches(".gguf"),
            Self::Hub { repository, .. } => repository.rsplit('/').next().unwrap_or_default(),
        };
        last.to_owned()
    }
}

/// What a download needs from outside.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// The hub, `https://huggingface.co`.
    pub hub: String,
    /// A token for the hub; sent to it alone.
    pub token: Option<String>,
    /// The checksum of a single file, if the caller knows it: 64 hex digits.
    pub sha256: Option<String>,
    /// Storage type of converted weights.
    pub dtype: StoredDtype,
    /// The proxies on the way.
    pub proxies: Proxies,
}

/// Told how far a download is: file, bytes so far, bytes in all if known.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, u64, Option<u64>);

/// Downloads and imports. Partial files stay for the next try; they are removed once the model is in place.
pub async fn pull(
    store: &ModelStore,
    source: &PullSource,
    name: &str,
    options: &PullOptions,
    progress: OnProgress<'_>,
) -> Result<ModelSummary, ModelError> {
    let target = store.target(name)?;
    let client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .proxy(options.proxies.for_client())
        .user_agent(concat!("reef/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| failed(&options.hub, &e))?;
    let key = match source {
        PullSource::File(url) => url.to_string(),
        PullSource::Hub { repository, revision } => format!("{repository}@{revision}"),
    };
    let scratch = store
        .dir()
        .join(".download")
        .join(&hex::encode(Sha256::digest(key))[..16]);
    fs::create_dir_all(&scratch).map_err(|e| ModelError::io(&scratch, e))?;
    let local = match source {
        PullSource::File(url) => {
            let path = scratch.join("model.gguf");
            let wanted = Wanted {
                url: url.clone(),
                token: None,
                size: None,
                sha256: options.sha256.clone(),
            };
            fetch(&client, &wanted, &path, progress).await?;
            path
        }
        PullSource::Hub { repository, revision } => {
            for (file, wanted) in listing(&client, options, repository, revision).await? {
                fetch(&client, &wanted, &scratch.join(file), progress).await?;
            }
            scratch.clone()
        }
    };
    let (store, name, dtype) = (store.clone(), name.to_owned(), options.dtype);
    let imported = task::blocking("importing a model", move || store.import(&local, &name, dtype))
        .await
        .map_err(|e| ModelError::io(target, std::io::Error::other(e)))?;
    // Once the model is in place the download is only space, and one that cannot be imported would fail again.
    if !matches!(imported, Err(ModelError::Io { .. })) {
        let _ignored = fs::remove_dir_all(&scratch);
    }
    imported
}

/// One file to fetch and how to know it.
#[derive(Debug)]
struct Wanted {
    url: Url,
    token: Option<String>,
    size: Option<u64>,
    sha256: Option<String>,
}

impl Wanted {
    /// The URL without its query, which may carry a signature.
    fn shown(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.to_string()
    }

    fn fails(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Download {
            url: self.shown(),
            reason: reason.into(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct HubEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    size: Option<u64>,
    lfs: Option<HubLfs>,
}

#[derive(Debug, Deserialize)]
struct HubLfs {
    oid: String,
}

/// The files of a repository that a model needs.
async fn listing(
    client: &Client,
    options: &PullOptions,
    repository: &str,
    revision: &str,
) -> Result<Vec<(String, Wanted)>, ModelError> {
    let hub = options.hub.trim_end_matches('/');
    let address = format!("{hub}/api/models/{repository}/tree/{revision}");
    let url = |text: &str| {
        Url::parse(text).map_err(|e| ModelError::Download {
            url: text.to_owned(),
            reason: e.to_string(),
        })
    };
    let wanted = Wanted {
        url: url(&address)?,
        token: options.token.clone(),
        size: None,
        sha256: None,
    };
    let response = send(client, &wanted, None).await?;
    if !response.status().is_success() {
        return Err(wanted.fails(refusal(response.status())));
    }
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(piece) = stream.next().await {
        body.extend_from_slice(&piece.map_err(|e| wanted.fails(why(&e)))?);
        if body.len() > MAX_LISTING_BYTES {
            return Err(wanted.fails("the list of files is too long to be one"));
        }
    }
    let entries: Vec<HubEntry> =
        serde_json::from_slice(&body).map_err(|e| wanted.fails(format!("not a list of files: {e}")))?;
    let mut files = Vec::new();
    for entry in entries.into_iter().filter(|e| e.kind == "file" && is_needed(&e.path)) {
        files.push((
            entry.path.clone(),
            Wanted {
                url: url(&format!("{hub}/{repository}/resolve/{revision}/{}", entry.path))?,
                token: options.token.clone(),
                size: entry.size,
                sha256: entry.lfs.map(|lfs| lfs.oid),
            },
        ));
    }
    if !files.iter().any(|(path, _)| path.ends_with(".safetensors")) {
        return Err(wanted.fails("the repository has no safetensors weights"));
    }
    Ok(files)
}

/// Top-level files only, so that a path from the hub can never leave the folder.
fn is_needed(path: &str) -> bool {
    let plain = !path.starts_with('.') && path.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let known = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "special_tokens_map.json",
        "model.safetensors.index.json",
    ];
    plain && (known.contains(&path) || (path.starts_with("model") && path.ends_with(".safetensors")))
}

/// Fetches one file to `path`, by way of `path.part`.
async fn fetch(client: &Client, wanted: &Wanted, path: &Path, progress: OnProgress<'_>) -> Result<(), ModelError> {
    if path.is_file() {
        return Ok(());
    }
    let part = with_suffix(path, ".part");
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt(client, wanted, path, &part, progress).await {
            Ok(()) => break,
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Again(error)) if tries >= TRIES => return Err(error),
            Err(Attempt::Again(_)) => tokio::time::sleep(Duration::from_millis(200 << tries)).await,
        }
    }
    verify(wanted, &part)?;
    fs::rename(&part, path).map_err(|e| ModelError::io(path, e))
}

enum Attempt {
    /// Worth another try.
    Again(ModelError),
    Final(ModelError),
}

async fn attempt(
    client: &Client,
    wanted: &Wanted,
    path: &Path,
    part: &Path,
    progress: OnProgress<'_>,
) -> Result<(), Attempt> {
    let io = |e| Attempt::Final(ModelError::io(part, e));
    let tag_path = with_suffix(path, ".etag");
    let have = fs::metadata(part).map_or(0, |m| m.len());
    let tag = fs::read_to_string(&tag_path).ok().filter(|_| have > 0);
    let response = send(client, wanted, tag.as_deref().map(|tag| (have, tag)))
        .await
        .map_err(Attempt::Again)?;
    let status = response.status();
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        // The part is already whole, or of another file; checking it tells.
        return if wanted.size == Some(have) {
            Ok(())
        } else {
            fs::remove_file(part).map_err(io)?;
            Err(Attempt::Again(wanted.fails("the server refused to resume")))
        };
    }
    if !status.is_success() {
        let error = wanted.fails(refusal(status));
        return Err(if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            Attempt::Again(error)
        } else {
            Attempt::Final(error)
        });
    }
    let resumed = status == StatusCode::PARTIAL_CONTENT && starts_at(&response, have);
    let mut done = if resumed { have } else { 0 };
    let total = wanted
        .size
        .or_else(|| response.content_length().map(|rest| done + rest));
    if let Some(tag) = response.headers().get(ETAG).and_then(|t| t.to_str().ok()) {
        fs::write(&tag_path, tag).map_err(io)?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .append(resumed)
        .truncate(!resumed)
        .open(part)
        .map_err(io)?;
    let name = path
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let mut stream = response.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|e| Attempt::Again(wanted.fails(why(&e))))?;
        file.write_all(&piece).map_err(io)?;
        done += piece.len() as u64;
        if total.is_some_and(|total| done > total) {
            return Err(Attempt::Final(wanted.fails("the server sent more than it announced")));
        }
        progress(&name, done, total);
    }
    if total.is_some_and(|total| done < total) {
        return Err(Attempt::Again(wanted.fails(format!("it ended after {done} bytes"))));
    }
    file.sync_all().map_err(io)
}

async fn send(client: &Client, wanted: &Wanted, resume: Option<(u64, &str)>) -> Result<Response, ModelError> {
    let mut request = client.get(wanted.url.clone());
    if let Some(token) = &wanted.token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    if let Some((from, tag)) = resume {
        request = request.header(RANGE, format!("bytes={from}-")).header(IF_RANGE, tag);
    }
    request.send().await.map_err(|e| wanted.fails(why(&e)))
}

fn starts_at(response: &Response, offset: u64) -> bool {
    response
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

/// Checks what was downloaded. A wrong file is removed, so that the next try begins anew.
fn verify(wanted: &Wanted, part: &Path) -> Result<(), ModelError> {
    let io = |e| ModelError::io(part, e);
    let mut file = File::open(part).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut problem = wanted
        .size
        .filter(|&expected| expected != size)
        .map(|expected| format!("{size} bytes came where {expected} were announced"));
    if let (None, Some(expected)) = (&problem, &wanted.sha256) {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(io)? {
                0 => break,
                n => hash.update(&buffer[..n]),
            }
        }
        let found = hex::encode(hash.finalize());
        if !found.eq_ignore_ascii_case(expected) {
            problem = Some(format!("its SHA-256 is {found} where {expected} is expected"));
        }
    }
    match problem {
        None => Ok(()),
        Some(reason) => {
            fs::remove_file(part).map_err(io)?;
            Err(wanted.fails(reason))
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn refusal(status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("the server answered {status}; set HF_TOKEN if the model needs an account")
        }
        StatusCode::NOT_FOUND => format!("the server answered {status}; check the name and the revision"),
        other => format!("the server answered {other}"),
    }
}

fn failed(url: &str, error: &reqwest::Error) -> ModelError {
    ModelError::Download {
        url: url.to_owned(),
        reason: why(error),
    }
}

/// In words without the URL, which may carry a signature.
fn why(error: &reqwest::Error) -> String {
    let cause = Cause::of(error);
    match cause.hint() {
        Some(hint) => format!("{cause}; {hint}"),
        None => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_and_traps_refused() {
        let hub = PullSource::parse("hf://HuggingFaceTB/SmolLM2-135M-Instruct@main").unwrap();
        assert_eq!(hub.default_name(), "SmolLM2-135M-Instruct");
        let file = PullSource::parse("https://h/a/b-Q4_1.gguf?sig=1").unwrap();
        assert_eq!(file.default_name(), "b-Q4_1");
        for bad in [
            "hf://org",
            "hf://org/../x",
            "hf://o/n@a/b",
            "ftp://h/x.gguf",
            "https://h/x.bin",
            "x.gguf",
        ] {
            assert!(PullSource::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_plain_top_level_files_are_taken() {
        assert!(is_needed("model-00001-of-00002.safetensors"));
        for bad in [
            "../model.safetensors",
            "a/config.json",
            ".config.json",
            "pytorch_model.bin",
            "model x.safetensors",
        ] {
            assert!(!is_needed(bad), "{bad}");
        }
    }
}
