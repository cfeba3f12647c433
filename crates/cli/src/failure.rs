use std::env;
use std::error::Error;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use miette::{Diagnostic, Report, ReportHandler};
use paceline_comm::CommError;
use paceline_server::ServerError;
use paceline_train::TrainError;

/// The command could not do its work.
const FAILED: u8 = 1;
/// The command line asks for something that does not make sense. clap uses the same number.
const WRONG_USAGE: u8 = 2;

/// Why a command ends without having done its work: what, where, what to do next, and the exit status.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub struct Failure {
    message: String,
    #[help]
    help: Option<String>,
    #[source]
    cause: Option<Box<dyn Error + Send + Sync>>,
    status: u8,
}

impl Failure {
    /// The work failed: exit status 1.
    pub fn failed(message: impl Display) -> Failure {
        Failure { message: message.to_string(), help: None, cause: None, status: FAILED }
    }

    /// The command line is wrong: exit status 2.
    pub fn usage(message: impl Display) -> Failure {
        Failure { status: WRONG_USAGE, ..Failure::failed(message) }
    }

    /// Adds what the user can do about it.
    pub fn help(self, help: impl Display) -> Failure {
        Failure { help: Some(help.to_string()), ..self }
    }

    /// Adds the error below it.
    pub fn cause(self, cause: impl Error + Send + Sync + 'static) -> Failure {
        Failure { cause: Some(Box::new(cause)), ..self }
    }

    /// What went wrong and why, for a message that somebody else writes.
    pub fn in_one_line(&self) -> String {
        let cause = self.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        let help = self.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("{}{cause}{help}", self.message)
    }

    /// What the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }

    /// Writes it to standard error, in one piece, so that the reports of several ranks do not mix.
    pub fn report(self) {
        let text = format!("{:?}\n", Report::new(self));
        // There is nobody left to tell if standard error is closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// What has become of words for standard output. Whoever reads them may leave when it has seen enough (`| head -1`): that
/// is no failure, and the work goes on, as files may still be to be written.
///
/// # Errors
/// Standard output could not be written to for another reason.
pub fn unless_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed("cannot write to standard output").cause(error))
        }
        _ => Ok(()),
    }
}

/// The message names rank, host, operation and the next step by itself.
impl From<CommError> for Failure {
    fn from(error: CommError) -> Failure {
        Failure::failed(error)
    }
}

/// As above.
impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::failed(error)
    }
}

/// As above; senseless options are wrong usage.
impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        match error {
            TrainError::Options(_) => Failure::usage(error),
            _ => Failure::failed(error),
        }
    }
}

/// Makes every [`Report`] look like clap's messages: what went wrong, the causes below it, what to do next. Lines are not
/// wrapped: a message stays on one line for those who search logs.
pub fn install_report_style() {
    let installed = miette::set_hook(Box::new(|_| Box::new(Plain)));
    debug_assert!(installed.is_ok(), "the style is installed once");
}

struct Plain;

impl ReportHandler for Plain {
    fn debug(&self, diagnostic: &dyn Diagnostic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colours = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let (red, green, reset) = if colours { ("\x1b[1;31m", "\x1b[32m", "\x1b[0m") } else { ("", "", "") };
        write!(f, "{red}error:{reset} {diagnostic}")?;
        let mut cause = diagnostic.source();
        while let Some(error) = cause {
            write!(f, "\n  cause: {error}")?;
            cause = error.source();
        }
        if let Some(help) = diagnostic.help() {
            write!(f, "\n  {green}help:{reset} {help}")?;
        }
        Ok(())
    }
}
