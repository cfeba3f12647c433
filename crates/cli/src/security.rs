//! How the links of a job are protected, as the command line says it; docs/security.md says what it means.

use clap::Args;
use paceline_fabric::environment;
use paceline_fabric::environment::Network;
use paceline_fabric::security::Secret;

use crate::failure::Failure;

/// What `train`, `perf` and `launch` are told alike.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct SecurityArguments {
    /// Encrypt everything that links over TCP carry (PACELINE_ENCRYPT=1); all ranks or none
    #[arg(long)]
    encrypt: bool,

    /// Let ranks on other hosts in although no shared secret proves who they are (PACELINE_INSECURE=1)
    #[arg(long)]
    insecure: bool,
}

impl SecurityArguments {
    /// Adds to what the environment says.
    pub fn apply(self, network: &mut Network) {
        network.encrypt |= self.encrypt;
        network.insecure |= self.insecure;
    }

    /// What ranks that are started here find in their environment: these options, and a new secret if there is none.
    ///
    /// # Errors
    /// The secret of the environment cannot be used.
    pub fn for_ranks(self) -> Result<Vec<(String, String)>, Failure> {
        let mut variables = self.switches();
        if given()?.is_none() {
            variables.push(secret_variable(&generated()?));
        }
        Ok(variables)
    }

    /// As [`SecurityArguments::for_ranks`] for ranks that do not have our environment and our files: the secret is always
    /// among them.
    ///
    /// # Errors
    /// The secret of the environment cannot be used.
    pub fn for_other_hosts(self) -> Result<Vec<(String, String)>, Failure> {
        let mut variables = self.switches();
        let secret = given()?.map_or_else(generated, Ok)?;
        variables.push(secret_variable(&secret));
        Ok(variables)
    }

    fn switches(self) -> Vec<(String, String)> {
        let switches = [("PACELINE_ENCRYPT", self.encrypt), ("PACELINE_INSECURE", self.insecure)];
        switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| (name.to_owned(), "1".to_owned())).collect()
    }
}

fn given() -> Result<Option<Secret>, Failure> {
    environment::secret().map_err(|error| Failure::usage("the shared secret cannot be used").cause(error))
}

fn generated() -> Result<Secret, Failure> {
    Secret::generate().map_err(|error| Failure::failed("cannot draw random numbers for a secret").cause(error))
}

fn secret_variable(secret: &Secret) -> (String, String) {
    ("PACELINE_SECRET".to_owned(), secret.reveal().to_owned())
}
