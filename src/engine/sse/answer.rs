//! What a whole body is: an answer, a failure, an answer that is not there yet, or none.

use serde_json::Value;

use super::anthropic::MessageTurn;
use super::chat::ChatTurn;
use super::failure::{failure_of, words};
use super::json::{list, text};
use super::responses::ResponseTurn;
use crate::domain::{Route, Turn};
use crate::sys::json::{self, NotJson};

/// What came as the body of a success.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The model's answer.
    Whole(Box<Turn>),
    /// The provider works on it; another request fetches it.
    NotYet {
        /// The provider's id of it, by which it is fetched.
        id: Option<String>,
        /// The provider's word for how far it is.
        status: String,
    },
    /// The provider failed, in these words.
    Failed(String),
    /// No answer, and why.
    Nothing(String),
}

/// Reads a whole (decoded) body of `route`.
pub fn answer_of_body(route: Route, body: &[u8]) -> Answer {
    let value = match json::read(body) {
        Ok(value) => value,
        Err(_) if is_page(body) => return Answer::Nothing("the body is a page of HTML".to_owned()),
        Err(NotJson::Empty) => return Answer::Nothing("the body is empty".to_owned()),
        Err(NotJson::CutShort) => return Answer::Nothing("the body is JSON cut short".to_owned()),
        Err(NotJson::Other { .. }) => return Answer::Nothing("the body is not JSON".to_owned()),
    };
    if let Some(failure) = failure_of(&value, false) {
        return Answer::Failed(failure);
    }
    let read = match route {
        Route::ChatCompletions | Route::Completions => chat(&value),
        Route::Responses => response(&value),
        Route::Messages => message(&value),
        Route::CountTokens => count(&value),
    };
    read.unwrap_or_else(|| Answer::Nothing(format!("the body is not what {} answers", route.path())))
}

/// The turn of a whole (decoded) body. A body that holds no answer gives an empty turn with a note.
pub fn turn_of_body(route: Route, body: &[u8]) -> Turn {
    let note = match answer_of_body(route, body) {
        Answer::Whole(turn) => return *turn,
        Answer::NotYet { status, .. } => format!("the response is not there yet: {status}"),
        Answer::Failed(error) => format!("the response reports an error: {error}"),
        Answer::Nothing(why) => why,
    };
    Turn {
        notes: vec![note],
        ..Turn::default()
    }
}

fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'<')
}

fn whole(turn: Turn) -> Answer {
    Answer::Whole(Box::new(turn))
}

fn chat(value: &Value) -> Option<Answer> {
    let mut turn = ChatTurn::default();
    if let Err(failure) = turn.take(value, false) {
        return Some(Answer::Failed(failure));
    }
    if turn.begun() {
        return Some(whole(turn.finish()));
    }
    // A deferred completion: nothing but the id to ask for it by.
    let id = text(value, "request_id").filter(|_| value.as_object().is_some_and(|fields| fields.len() == 1))?;
    Some(Answer::NotYet {
        id: Some(id.to_owned()),
        status: "deferred".to_owned(),
    })
}

fn message(value: &Value) -> Option<Answer> {
    let blocks = value.get("content").is_some_and(Value::is_array);
    (blocks || text(value, "type") == Some("message")).then(|| {
        let mut turn = MessageTurn::default();
        turn.take_message(value);
        whole(turn.finish())
    })
}

fn count(value: &Value) -> Option<Answer> {
    super::json::count(value, "input_tokens").map(|_| {
        let mut turn = MessageTurn::default();
        turn.take_count(value);
        whole(turn.finish())
    })
}

fn response(value: &Value) -> Option<Answer> {
    match text(value, "status") {
        Some(status @ ("queued" | "in_progress")) => {
            return Some(Answer::NotYet {
                id: text(value, "id").map(str::to_owned),
                status: status.to_owned(),
            });
        }
        Some(status @ ("failed" | "cancelled")) => {
            let said = value.get("error").filter(|error| !error.is_null()).map(words);
            return Some(Answer::Failed(
                said.unwrap_or_else(|| format!("the response is {status}")),
            ));
        }
        _ => {}
    }
    let known = text(value, "object") == Some("response") || !list(value, "output").is_empty();
    known.then(|| {
        let mut turn = ResponseTurn::default();
        match turn.take_response(value) {
            Ok(()) => whole(turn.finish()),
            Err(failure) => Answer::Failed(failure),
        }
    })
}
