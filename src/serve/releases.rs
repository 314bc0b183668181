//! `/reef/scenarios/{scenario}/releases` and the decisions on them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::error::ApiError;
use super::query::Query;
use super::reply::{ReplyBody, json, json_private};
use super::report::invalid;
use super::scenarios::{body, existing, no_more};
use super::state::State;
use crate::domain::{ReleaseId, ScenarioName};
use crate::engine::EngineError;
use crate::experience::StepQuery;
use crate::release::{FileEntry, Manifest, ReleaseError, Repository, Selector, TrainingState};
use crate::scenario::{CatalogRow, PublishError, catalog_row};
use crate::sys::task;

/// Bytes read from a file at a time.
const CHUNK: usize = 256 * 1024;
/// Chunks that may wait for a slow client; reading stops while they do.
const WAITING: usize = 4;
const LARGEST_LIST: u64 = 100_000;

/// `GET /reef/scenarios/{scenario}/releases`: every step, newest first.
pub(super) async fn list(
    state: &Arc<State>,
    name: &ScenarioName,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let query = Query::parse(query, &["limit", "before_step"])?;
    let limit = query.number("limit", 1, LARGEST_LIST)?;
    let wanted = StepQuery {
        before: query.number("before_step", 0, i64::MAX as u64)?,
        limit: limit.and_then(|limit| u32::try_from(limit).ok()),
        ..StepQuery::default()
    };
    let handle = existing(state, name).await?;
    let head = handle.head_sync().head;
    let scenario = name.clone();
    let body = state
        .read(move |experience| {
            #[derive(Serialize)]
            struct Listing<'a> {
                scenario: &'a ScenarioName,
                releases: Vec<CatalogRow<'a>>,
            }
            let steps = experience.steps(&scenario, &wanted)?;
            let releases = steps.iter().map(|step| catalog_row(step, Some(&head))).collect();
            let listing = Listing {
                scenario: &scenario,
                releases,
            };
            Ok(serde_json::to_vec(&listing))
        })
        .await?
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
    let mut response = json_private(&Value::Null);
    *response.body_mut() = ReplyBody::full(body);
    Ok(response)
}

/// `GET /reef/scenarios/{scenario}/releases/{release}`: its manifest.
pub(super) async fn one(state: &Arc<State>, name: &ScenarioName, id: &str) -> Result<Response<ReplyBody>, ApiError> {
    existing(state, name).await?;
    let (release, manifest) = manifest(state, name, id).await?;
    Ok(json(
        StatusCode::OK,
        &json!({"scenario": name, "release_id": release, "manifest": manifest}),
    ))
}

/// `POST /reef/scenarios/{scenario}/rollback`, `promote` and `reject`: `{"release_id": …}`, with `note` and, for
/// promote and rollback, `expected_head`.
pub(super) async fn decide(
    state: &Arc<State>,
    name: &ScenarioName,
    decision: &str,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let mut fields = body(state, request).await?;
    let mut text = |field: &'static str| match fields.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(invalid(field, "must be a string", &other)),
    };
    let target = text("release_id")?.or(text("target_release_id")?).ok_or_else(|| {
        ApiError::bad_request(
            "invalid_request",
            "release_id is missing; send {\"release_id\": \"<id>\"}",
        )
    })?;
    let note = text("note")?;
    let expected = text("expected_head")?.map(ReleaseId::new).transpose()?;
    no_more(&fields, "release_id, note and expected_head")?;
    if expected.is_some() && decision == "reject" {
        return Err(ApiError::bad_request(
            "invalid_request",
            "expected_head belongs to promote and rollback: a rejection moves no head",
        ));
    }
    let handle = existing(state, name).await?;
    let publisher = state.directory.publisher();
    let target = match decision {
        "rollback" => resolve_as(state, name, &target, Repository::resolve_for_rollback).await?,
        _ => resolve(state, name, &target).await?,
    };
    let published = match decision {
        "rollback" => publisher.rollback(name, &target, expected.as_ref(), note).await?,
        "promote" => publisher.promote(name, &target, expected.as_ref(), note).await?,
        _ => {
            publisher.reject(name, &target, note).await?;
            return Ok(json(
                StatusCode::OK,
                &json!({"scenario": name, "release_id": target, "state": "rejected"}),
            ));
        }
    };
    state.directory.refresh(&handle).await;
    let sync = handle.head_sync();
    Ok(json(
        StatusCode::OK,
        &json!({
            "scenario": name,
            "release_id": published.release_id,
            "content_id": published.content_id,
            "appended": published.appended,
            "live": sync.synchronized,
            "error": sync.error,
        }),
    ))
}

/// `GET /reef/scenarios/{scenario}/releases/{release}/artifact`: the files as a tar, or one of them with `?path=`.
pub(super) async fn artifact(
    state: &Arc<State>,
    name: &ScenarioName,
    id: &str,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let query = Query::parse(query, &["path"])?;
    existing(state, name).await?;
    let (release, manifest) = manifest(state, name, id).await?;
    let wanted = query.one("path")?.map(str::to_owned);
    if let Some(path) = &wanted
        && !manifest.content.files.iter().any(|file| file.path == *path)
    {
        let shown: String = path.chars().take(100).flat_map(char::escape_default).collect();
        return Err(ApiError::not_found(
            "unknown_file",
            format!("release {release} has no file \"{shown}\""),
        ));
    }
    let repository = state.directory.publisher().repository().clone();
    let (from, one) = (release.clone(), wanted.clone());
    let (dir, held, training) = blocking(move || {
        // Nothing of it goes while a slow client reads.
        let held = repository.hold(&from)?;
        let dir = repository.materialise(&from)?;
        if let Some(path) = one {
            repository.check_file(&from, &path)?;
        }
        Ok((dir, held, repository.training_state(&from)?))
    })
    .await?;
    let left_out = |path: &str| matches!(training, TrainingState::Gone { .. }) && manifest.content.is_state(path);
    let files: Vec<FileEntry> = manifest
        .content
        .files
        .iter()
        .filter(|f| !left_out(&f.path))
        .cloned()
        .collect();
    let (send, receive) = mpsc::channel(WAITING);
    let (content_type, file_name, size) = match &wanted {
        Some(path) => {
            let entry = manifest.content.files.iter().find(|file| file.path == *path);
            let base = path.rsplit('/').next().unwrap_or(path).to_owned();
            ("application/octet-stream", base, entry.map(|entry| entry.size))
        }
        None => ("application/x-tar", format!("{name}-{release}.tar"), None),
    };
    let _sending = task::blocking("sending files of a release", move || {
        let mut sink = Sink(send);
        let written = match wanted {
            Some(path) => copy(dir.join(path), &mut sink),
            None => pack(&dir, &files, &mut sink),
        };
        if let Err(error) = written.and_then(|()| sink.flush()) {
            sink.fail(&error);
        }
        drop(held);
    });
    let mut response = Response::new(ReplyBody::Download(Box::pin(ReceiverStream::new(receive))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(size) = size {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    let file_name: String = file_name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{file_name}\"")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    if let Ok(value) = HeaderValue::from_str(release.as_str()) {
        headers.insert("x-reef-release-id", value);
    }
    headers.insert("x-reef-training-state", HeaderValue::from_static(training.as_str()));
    Ok(response)
}

async fn manifest(state: &State, name: &ScenarioName, id: &str) -> Result<(ReleaseId, Manifest), ApiError> {
    let release = resolve(state, name, id).await?;
    let repository = state.directory.publisher().repository().clone();
    let from = release.clone();
    let manifest = blocking(move || repository.manifest(&from)).await?;
    Ok((release, manifest))
}

/// The release a client names: `head`, `head~N`, an id or the first digits of one, of this scenario only.
pub(super) async fn resolve(state: &State, name: &ScenarioName, text: &str) -> Result<ReleaseId, ApiError> {
    resolve_as(state, name, text, |repository, selector, name| {
        repository.resolve(selector, Some(name))
    })
    .await
}

/// The same, with a meaning of `head~N`.
async fn resolve_as(
    state: &State,
    name: &ScenarioName,
    text: &str,
    back: fn(&Repository, &Selector, &ScenarioName) -> Result<ReleaseId, ReleaseError>,
) -> Result<ReleaseId, ApiError> {
    let publisher = state.directory.publisher().clone();
    let (name, text) = (name.clone(), text.to_owned());
    let resolved = task::blocking("finding a release", move || {
        let selector = Selector::parse(&text);
        let id = match &selector {
            Selector::Id(prefix) => {
                let mut found = publisher
                    .experience()
                    .releases_by_prefix(&name, &prefix.to_ascii_lowercase())?;
                match (found.pop(), found.pop()) {
                    (Some(_), Some(_)) if prefix.len() < 40 => {
                        return Err(ReleaseError::Ambiguous { prefix: prefix.clone() }.into());
                    }
                    (found, _) if prefix.len() >= 4 => found,
                    _ => None,
                }
            }
            Selector::Head(_) => Some(back(publisher.repository(), &selector, &name)?),
            Selector::Base => None,
        };
        id.ok_or_else(|| {
            let shown: String = text.chars().take(60).flat_map(char::escape_default).collect();
            PublishError::from(ReleaseError::NotFound {
                what: format!("release {shown} of scenario {name}"),
            })
        })
    })
    .await;
    Ok(resolved??)
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReleaseError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = task::blocking("work on the repository", work).await?;
    done.map_err(|error| PublishError::from(error).into())
}

fn copy(path: PathBuf, sink: &mut Sink) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        sink.write_all(&buffer[..n])?;
    }
}

/// The same release gives the same tar: files in the manifest's order, no owner, no times.
fn pack(dir: &std::path::Path, files: &[FileEntry], sink: &mut Sink) -> io::Result<()> {
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(CHUNK, sink));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.size);
        header.set_mode(if file.executable { 0o755 } else { 0o644 });
        header.set_mtime(0);
        archive.append_data(&mut header, &file.path, File::open(dir.join(&file.path))?)?;
    }
    archive.into_inner()?.flush()
}

/// The writing end of a download: blocks while the client is slow, fails when it is gone.
struct Sink(mpsc::Sender<Result<Bytes, EngineError>>);

impl Sink {
    /// Breaks the response off, so that the client does not take a part for the whole.
    fn fail(&self, error: &io::Error) {
        tracing::warn!(%error, "a download broke off");
        let broken = EngineError::Broken {
            reason: "the files could not be read to their end".to_owned(),
        };
        // Fails when the client left first.
        let _gone = self.0.blocking_send(Err(broken));
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .blocking_send(Ok(Bytes::copy_from_slice(bytes)))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
