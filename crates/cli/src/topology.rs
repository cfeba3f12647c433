//! How hosts are wired, as the command line says it; docs/algorithms.md says which algorithms follow that.

use clap::Args;
use paceline_fabric::environment::{self, Environment};
use paceline_plan::Shape;

/// What `train`, `perf` and `probe` are told alike.
#[derive(Args, Clone, Copy, Debug)]
pub struct TopologyArguments {
    /// How the hosts are wired, in the words of a cluster's file: torus:XxY, which the algorithm 2d-torus follows, bcube:PORTS:LEVELS,
    /// which bcube follows, or flat; the same on all ranks [default: what PACELINE_TOPOLOGY says, or else flat]
    #[arg(long, value_name = "SHAPE", value_parser = shape)]
    topology: Option<Shape>,
}

impl TopologyArguments {
    /// Goes before what the environment says.
    pub fn apply(self, environment: &mut Environment) {
        environment.topology = self.topology.unwrap_or(environment.topology);
    }
}

/// For clap: what programs follow, or flat.
fn shape(text: &str) -> Result<Shape, String> {
    environment::topology(text).map_err(|what| format!("it {what}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        topology: TopologyArguments,
    }

    fn told(variable: &str, words: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from([&["test"], words].concat()).map_err(|error| error.to_string())?;
        let get = |name: &str| (name == "PACELINE_TOPOLOGY").then(|| variable.to_owned());
        let mut environment = Environment::from_variables(get).map_err(|error| error.to_string())?;
        line.topology.apply(&mut environment);
        Ok(environment.topology.to_string())
    }

    #[test]
    fn the_option_goes_before_the_environment() {
        assert_eq!(told("", &[]).as_deref(), Ok("flat"));
        assert_eq!(told("torus:4x2", &[]).as_deref(), Ok("torus:4x2"));
        assert_eq!(told("torus:4x2", &["--topology", "bcube:2:3"]).as_deref(), Ok("bcube:2:3"));
        assert_eq!(told("torus:4x2", &["--topology", "flat"]).as_deref(), Ok("flat"));
        let refused = told("", &["--topology", "tree:8:2"]).unwrap_err();
        assert!(refused.contains("it changes no program: torus:XxY and bcube:PORTS:LEVELS do"), "{refused}");
        assert!(told("tree:8:2", &[]).unwrap_err().starts_with("PACELINE_TOPOLOGY=\"tree:8:2\" changes no program"));
    }
}
