//! A task as it stands in a file.

use serde::{Deserialize, Serialize};

use super::{GraphError, Task, Work};

/// The fields of work on a resource, and those of a transfer. A task has those of one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskInFile {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<Vec<String>>,
    #[serde(default)]
    latency_s: f64,
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    priority: u32,
}

impl TryFrom<TaskInFile> for Task {
    type Error = GraphError;

    fn try_from(task: TaskInFile) -> Result<Task, GraphError> {
        let TaskInFile { name, resource, seconds, bytes, route, latency_s, after, priority } = task;
        let on_resource = first([("seconds", seconds.is_some()), ("resource", resource.is_some())]);
        let of_transfer = first([("bytes", bytes.is_some()), ("route", route.is_some())]);
        if let (Some(field), Some(other)) = (on_resource, of_transfer) {
            return Err(GraphError::Both { task: name, field, other });
        }
        let missing = |field| GraphError::Missing { task: name.clone(), field };
        let work = if of_transfer.is_some() {
            let bytes = bytes.ok_or_else(|| missing("bytes"))?;
            Work::Transfer { bytes, route: route.ok_or_else(|| missing("route"))? }
        } else {
            let resource = resource.ok_or_else(|| missing("resource"))?;
            Work::OnResource { resource, seconds: seconds.ok_or_else(|| missing("seconds"))? }
        };
        Ok(Task { name, work, latency_s, after, priority })
    }
}

/// The first field that is there.
fn first(fields: [(&'static str, bool); 2]) -> Option<&'static str> {
    fields.into_iter().find_map(|(field, is_there)| is_there.then_some(field))
}

impl From<Task> for TaskInFile {
    fn from(task: Task) -> TaskInFile {
        let Task { name, work, latency_s, after, priority } = task;
        let (resource, seconds, bytes, route) = match work {
            Work::OnResource { resource, seconds } => (Some(resource), Some(seconds), None, None),
            Work::Transfer { bytes, route } => (None, None, Some(bytes), Some(route)),
        };
        TaskInFile { name, resource, seconds, bytes, route, latency_s, after, priority }
    }
}
