use std::ops::Range;

use crate::nearest::nearest;
use crate::{Aspect, Call, Method, Parameter, Presence, Preset, Problem, Registry, Strategy, StrategyError};

impl Registry {
    /// The strategy that a text stands for, with every aspect and every argument that has a default filled in.
    ///
    /// # Errors
    ///
    /// A [`StrategyError`] that points at the part to blame, for whatever can't be run.
    pub fn parse(&self, text: &str) -> Result<Strategy, StrategyError> {
        let mut choices = Choices::default();
        let mut rest = Piece { text, start: 0 }.split(',');
        let first = rest.remove(0);
        if first.text.contains('=') {
            choices.choose(self, first)?;
        } else if self.is_short_form(first) {
            choices.calls[Aspect::Schedule as usize] = Some(vec![self.call(Aspect::Schedule, first)?]);
            choices.fallback = Some(first.span());
        } else {
            let strategy = self.preset(first)?;
            choices.fill(self, strategy).map_err(|error| self.preset_error(first, error))?;
            choices.fallback = Some(first.span());
        }
        for item in rest {
            choices.choose(self, item)?;
        }
        choices.finish(self, text)
    }

    /// Does the word stand for a strategy as a preset does, and take arguments?
    fn is_short_form(&self, word: Piece) -> bool {
        let name = word.split(':').remove(0).text;
        self.short_forms().any(|method| method.name == name) && self.presets().iter().all(|preset| preset.name != name)
    }

    /// What the preset of that name stands for.
    fn preset(&self, word: Piece) -> Result<&'static str, StrategyError> {
        if word.text.is_empty() {
            let expected = "a preset (such as wfbp-a2a) or ASPECT=METHOD (such as schedule=wfbp)".to_owned();
            return Err(word.error(Problem::Missing { expected }));
        }
        if Aspect::ALL.iter().any(|aspect| aspect.name() == word.text) {
            return Err(word.error(Problem::Missing { expected: format!("a method: {}=METHOD", word.text) }));
        }
        match self.presets().iter().find(|preset| preset.name == word.text) {
            Some(&Preset { strategy: Some(strategy), .. }) => Ok(strategy),
            Some(_) => Err(word.error(self.planned_preset(word, None))),
            None => Err(word.error(self.unknown_preset(word))),
        }
    }

    /// What is wrong with a word that is no preset: it has arguments, or is a method of some aspect, or a slip of the pen.
    fn unknown_preset(&self, word: Piece) -> Problem {
        let mut arguments = word.split(':');
        let name = arguments.remove(0).text;
        if self.presets().iter().any(|preset| preset.name == name) {
            return argument_count(name, name.to_owned(), arguments.len());
        }
        let method = Aspect::ALL.into_iter().find(|&aspect| self.method(aspect, name).is_some());
        let short_forms = self.short_forms().map(|method| method.name);
        let nearest = nearest(name, self.presets().iter().map(|preset| preset.name).chain(short_forms));
        Problem::Unknown {
            what: "preset".to_owned(),
            word: word.text.to_owned(),
            nearest: method.map(|aspect| format!("{aspect}={}", word.text)).or(nearest.map(str::to_owned)),
            known: self.runnable_presets(),
        }
    }

    /// An error in what a preset stands for is one of the word.
    fn preset_error(&self, word: Piece, error: StrategyError) -> StrategyError {
        word.error(match *error.problem {
            Problem::Planned { what, word: method, .. } => {
                self.planned_preset(word, Some(format!("{what} `{method}`")))
            }
            problem => problem,
        })
    }

    fn planned_preset(&self, word: Piece, because: Option<String>) -> Problem {
        let known = self.runnable_presets();
        Problem::Planned { what: "preset".to_owned(), word: word.text.to_owned(), because, known }
    }

    fn runnable_presets(&self) -> Vec<String> {
        let runs = |strategy: &str| Choices::default().fill(self, strategy).is_ok();
        let presets = self.presets().iter().filter(|preset| preset.strategy.is_some_and(runs));
        presets.map(|preset| preset.name.to_owned()).chain(self.short_forms().map(Method::form)).collect()
    }

    /// A method with its arguments.
    fn call(&self, aspect: Aspect, text: Piece) -> Result<Call, StrategyError> {
        let mut arguments = text.split(':');
        let name = arguments.remove(0);
        let method = self.find(aspect, name)?;
        let required = method.parameters.iter().filter(|parameter| parameter.presence == Presence::Required).count();
        if arguments.len() < required || arguments.len() > method.parameters.len() {
            return Err(text.error(argument_count(method.name, method.form(), arguments.len())));
        }
        let mut values = Vec::with_capacity(method.parameters.len());
        let mut given = arguments.into_iter().peekable();
        for (index, parameter) in method.parameters.iter().enumerate() {
            let next = given.next_if(|next| !names_a_later_parameter(next.text, &method.parameters[index..]));
            let argument = match (next, parameter.presence) {
                (Some(argument), _) => argument,
                // A default is written by a programmer; if it is no argument, the error says so.
                (None, Presence::Default(default)) => Piece { text: default, start: text.start },
                (None, Presence::Required | Presence::Optional) => break,
            };
            let value = parameter.kind.parse(argument.text);
            values.push(value.ok_or_else(|| argument.error(bad_argument(method, index, argument.text)))?);
        }
        Ok(Call { name: method.name.to_owned(), arguments: values })
    }

    /// The method of that name, if it can run.
    fn find(&self, aspect: Aspect, name: Piece) -> Result<&Method, StrategyError> {
        let known = || self.methods(aspect).filter(|method| method.available).map(Method::form).collect();
        let what = format!("{aspect} method");
        if name.text.is_empty() {
            let known: Vec<String> = known();
            return Err(name.error(Problem::Missing { expected: format!("a {what} ({})", known.join(", ")) }));
        }
        match self.method(aspect, name.text) {
            Some(method) if method.available => Ok(method),
            Some(_) => {
                let word = name.text.to_owned();
                Err(name.error(Problem::Planned { what, word, because: None, known: known() }))
            }
            None => Err(name.error(Problem::Unknown {
                what,
                word: name.text.to_owned(),
                nearest: nearest(name.text, self.methods(aspect).map(|method| method.name)).map(str::to_owned),
                known: known(),
            })),
        }
    }
}

/// What has been chosen so far, aspect by aspect.
#[derive(Default)]
struct Choices {
    calls: [Option<Vec<Call>>; 5],
    /// Where the text chooses the aspect.
    spans: [Option<Range<usize>>; 5],
    /// What is to blame for an aspect that the text doesn't choose: the preset.
    fallback: Option<Range<usize>>,
}

impl Choices {
    /// Takes in `ASPECT=CHAIN`.
    fn choose(&mut self, registry: &Registry, item: Piece) -> Result<(), StrategyError> {
        let Some((word, chain)) = item.split_once('=') else {
            let expected = "ASPECT=METHOD (a preset can only stand first)".to_owned();
            return Err(item.error(match item.text {
                "" => Problem::Missing { expected },
                word => unknown_aspect(word),
            }));
        };
        let Some(aspect) = Aspect::ALL.into_iter().find(|aspect| aspect.name() == word.text) else {
            return Err(word.error(unknown_aspect(word.text)));
        };
        let (calls, span) = (&mut self.calls[aspect as usize], &mut self.spans[aspect as usize]);
        if span.is_some() {
            return Err(item.error(Problem::Twice { aspect }));
        }
        let stages = chain.split('*');
        if stages.len() > 1 && !aspect.takes_hybrids() {
            return Err(chain.error(Problem::NoHybrid { aspect }));
        }
        *calls = Some(stages.into_iter().map(|stage| registry.call(aspect, stage)).collect::<Result<_, _>>()?);
        *span = Some(item.span());
        Ok(())
    }

    /// Takes in a whole text of items, such as a preset stands for, for the aspects that have no choice yet.
    fn fill(&mut self, registry: &Registry, strategy: &str) -> Result<(), StrategyError> {
        let mut filling = Choices::default();
        for item in (Piece { text: strategy, start: 0 }).split(',') {
            filling.choose(registry, item)?;
        }
        for (calls, filling) in self.calls.iter_mut().zip(filling.calls) {
            *calls = calls.take().or(filling);
        }
        Ok(())
    }

    /// Fills in the defaults and asks the rules.
    fn finish(mut self, registry: &Registry, text: &str) -> Result<Strategy, StrategyError> {
        let whole = 0..text.len();
        self.fill(registry, registry.defaults())
            .map_err(|error| StrategyError { span: whole.clone(), problem: error.problem })?;
        let mut calls = self.calls.map(|calls| calls.expect("the defaults choose every aspect"));
        let mut one = |aspect: Aspect| calls[aspect as usize].remove(0);
        let strategy = Strategy {
            sync: one(Aspect::Sync),
            schedule: one(Aspect::Schedule),
            arch: one(Aspect::Arch),
            protocol: one(Aspect::Protocol),
            compress: std::mem::take(&mut calls[Aspect::Compress as usize]),
        };
        match registry.rules().iter().find_map(|rule| rule(&strategy)) {
            Some(senseless) => {
                let chosen = self.spans[senseless.aspect as usize].clone();
                let problem = Problem::Senseless { reason: senseless.reason };
                let span = chosen.or(self.fallback).unwrap_or(whole);
                Err(StrategyError { span, problem: Box::new(problem) })
            }
            None => Ok(strategy),
        }
    }
}

fn unknown_aspect(word: &str) -> Problem {
    Problem::Unknown {
        what: "aspect".to_owned(),
        word: word.to_owned(),
        nearest: nearest(word, Aspect::ALL.iter().map(|aspect| aspect.name())).map(str::to_owned),
        known: Aspect::ALL.iter().map(Aspect::to_string).collect(),
    }
}

/// Does an argument stand for a later parameter, so that the first one keeps its default? Only a name can say so: what a
/// number counts, its place says.
fn names_a_later_parameter(argument: &str, parameters: &[Parameter]) -> bool {
    let Some((first, later)) = parameters.split_first() else { return false };
    let names = |parameter: &Parameter| parameter.kind.names().contains(&argument);
    let skipped = later.iter().position(names).map(|position| &later[..position]);
    let has_default = |parameter: &Parameter| matches!(parameter.presence, Presence::Default(_));
    has_default(first) && !names(first) && skipped.is_some_and(|skipped| skipped.iter().all(has_default))
}

fn argument_count(name: &str, form: String, given: usize) -> Problem {
    let given = match given {
        0 => "no argument".to_owned(),
        1 => "1 argument".to_owned(),
        more => format!("{more} arguments"),
    };
    Problem::ArgumentCount { name: name.to_owned(), form, given }
}

fn bad_argument(method: &Method, index: usize, given: &str) -> Problem {
    let parameter = &method.parameters[index];
    let names = method.parameters[index..].iter().flat_map(|parameter| parameter.kind.names());
    Problem::Argument {
        form: method.form(),
        parameter: parameter.name.to_uppercase(),
        expected: parameter.kind.to_string(),
        given: given.to_owned(),
        nearest: nearest(given, names).map(str::to_owned),
    }
}

/// A part of the text that knows where it stands.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    start: usize,
}

impl<'a> Piece<'a> {
    fn span(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    fn error(self, problem: Problem) -> StrategyError {
        StrategyError { span: self.span(), problem: Box::new(problem) }
    }

    /// The pieces between the separators, without white space around them. At least one.
    fn split(self, separator: char) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut start = self.start;
        for text in self.text.split(separator) {
            pieces.push(Piece { text, start }.trim());
            start += text.len() + separator.len_utf8();
        }
        pieces
    }

    fn split_once(self, separator: char) -> Option<(Piece<'a>, Piece<'a>)> {
        let (left, right) = self.text.split_once(separator)?;
        let right_start = self.start + left.len() + separator.len_utf8();
        let left = Piece { text: left, start: self.start };
        Some((left.trim(), Piece { text: right, start: right_start }.trim()))
    }

    fn trim(self) -> Piece<'a> {
        let from_start = self.text.trim_start();
        let start = self.start + (self.text.len() - from_start.len());
        Piece { text: from_start.trim_end(), start }
    }
}
