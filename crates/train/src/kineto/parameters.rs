//! Which operation of forward uses which parameter, from shapes and the order of gradients.

use std::collections::HashMap;

use paceline_plan::ProfileTensor;

use super::TraceError;
use super::arithmetic::multiply_accumulates;
use super::events::{Event, Kind, MODULE};
use super::iteration::Iteration;

/// Operations whose arguments at these positions are parameters.
const KNOWN: [(&str, &[(usize, &str)]); 20] = [
    ("aten::linear", &[(1, "weight"), (2, "bias")]),
    ("aten::addmm", &[(2, "weight"), (0, "bias")]),
    ("aten::conv1d", &[(1, "weight"), (2, "bias")]),
    ("aten::conv2d", &[(1, "weight"), (2, "bias")]),
    ("aten::conv3d", &[(1, "weight"), (2, "bias")]),
    ("aten::conv_transpose1d", &[(1, "weight"), (2, "bias")]),
    ("aten::conv_transpose2d", &[(1, "weight"), (2, "bias")]),
    ("aten::conv_transpose3d", &[(1, "weight"), (2, "bias")]),
    ("aten::convolution", &[(1, "weight"), (2, "bias")]),
    ("aten::_convolution", &[(1, "weight"), (2, "bias")]),
    ("aten::batch_norm", &[(1, "weight"), (2, "bias")]),
    ("aten::native_batch_norm", &[(1, "weight"), (2, "bias")]),
    ("aten::instance_norm", &[(1, "weight"), (2, "bias")]),
    ("aten::layer_norm", &[(2, "weight"), (3, "bias")]),
    ("aten::native_layer_norm", &[(2, "weight"), (3, "bias")]),
    ("aten::group_norm", &[(2, "weight"), (3, "bias")]),
    ("aten::rms_norm", &[(2, "weight")]),
    ("aten::embedding", &[(0, "weight")]),
    ("aten::prelu", &[(1, "weight")]),
    ("aten::bilinear", &[(2, "weight"), (3, "bias")]),
];

/// What an operation of this name takes; None: it is not known.
fn known(name: &str) -> Option<&'static [(usize, &'static str)]> {
    KNOWN.iter().find(|(known, _)| *known == name).map(|(_, parameters)| *parameters)
}

/// An argument of an operation that may be a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot<'a> {
    shape: &'a [usize],
    /// `weight`, `bias`.
    role: &'static str,
    /// Which of its operation's arguments that may be parameters.
    argument: usize,
}

/// An operation of forward that may use parameters.
#[derive(Debug)]
struct Taker<'a> {
    event: &'a Event,
    slots: Vec<Slot<'a>>,
    /// Its parameters are known by its name. Of others, any argument may be one.
    is_known: bool,
}

/// What has more arguments than this takes no parameters: each gradient that it might take is compared with all of them.
const ARGUMENTS_MAX: usize = 10_000;

/// The outermost known operations, and the outermost of the others that have arguments.
fn takers<'a>(forward: &[&'a Event]) -> Vec<Taker<'a>> {
    let (mut known_until_us, mut other_until_us) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    let mut takers = Vec::new();
    for &event in forward {
        let Kind::Operation { shapes, .. } = &event.kind else { continue };
        if event.start_us < known_until_us {
            continue;
        }
        let slot = |(argument, (shape, role)): (usize, (&'a Vec<usize>, &'static str))| {
            (!shape.is_empty()).then_some(Slot { shape, role, argument })
        };
        if let Some(parameters) = known(&event.name) {
            known_until_us = event.end_us;
            let slots = parameters.iter().filter_map(|&(position, role)| Some((shapes.get(position)?, role)));
            takers.push(Taker { event, slots: slots.enumerate().filter_map(slot).collect(), is_known: true });
        } else if event.start_us >= other_until_us {
            let slots: Vec<Slot<'a>> =
                shapes.iter().map(|shape| (shape, "parameter")).enumerate().filter_map(slot).collect();
            if (1..=ARGUMENTS_MAX).contains(&slots.len()) {
                other_until_us = event.end_us;
                takers.push(Taker { event, slots, is_known: false });
            }
        }
    }
    takers
}

/// When forward comes to the first operation that has parameters by its name, whether they are trained or frozen.
pub(super) fn first_known_us(iteration: &Iteration<'_>) -> Option<f64> {
    iteration.forward.iter().find(|event| known(&event.name).is_some()).map(|event| event.start_us)
}

/// The same, or when forward comes to its first operation, if it has none that is known.
pub(super) fn first_taker_us(iteration: &Iteration<'_>) -> Option<f64> {
    first_known_us(iteration).or_else(|| iteration.forward.first().map(|event| event.start_us))
}

/// Which operation uses which parameters. Parameters are counted in the order of their first use, those of an operation in
/// that of its arguments.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Uses<'a> {
    /// By parameter: what it is, and the number of the operation that uses it first.
    parameters: Vec<(Slot<'a>, usize)>,
    /// Operations that use parameters, in order, and their parameters.
    operations: Vec<(Operation<'a>, Vec<usize>)>,
    /// By gradient, in the order in which they become final: its parameter.
    pub(super) gradients: Vec<usize>,
    /// An operation multiplies by what is no parameter as far as can be told: one that is frozen, or one of several that were
    /// used before.
    multiplies_besides: bool,
}

/// Operations of the same name are alike.
#[derive(Clone, Copy, Debug)]
struct Operation<'a>(&'a Event);

impl PartialEq for Operation<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl<'a> Uses<'a> {
    /// Walks through forward with the gradients, the last one first: each operation takes the next ones as long as they have
    /// the shapes of its arguments. An operation that is not known takes one only if there are more gradients of its shape
    /// than known operations ahead that could take them. What a known operation has not taken is a parameter that was used
    /// before, if there is exactly one of its shape. Linear in operations, and in gradients times the arguments of an operation.
    ///
    /// # Errors
    /// A gradient that fits no operation.
    pub(super) fn of(iteration: &Iteration<'a>) -> Result<Uses<'a>, TraceError> {
        let gradients = iteration.gradients.iter().rev().map(|gradient| gradient.shape.unwrap_or_default()).collect();
        let takers = takers(&iteration.forward);
        let mut walk = Walk::new(gradients, &takers);
        takers.into_iter().for_each(|taker| walk.pass(taker));
        let Walk { gradients, uses, .. } = walk;
        match gradients.get(uses.parameters.len()) {
            None => Ok(uses.in_order_of_arguments()),
            Some(_) if repeats(&gradients) => Err(TraceError::Accumulated),
            Some(shape) => {
                let number = gradients.len() - uses.parameters.len();
                Err(TraceError::Homeless { number, shape: shape.to_vec() })
            }
        }
    }

    /// From the order in which gradients say it to that of operations and their arguments.
    fn in_order_of_arguments(mut self) -> Self {
        let mut order: Vec<usize> = (0..self.parameters.len()).collect();
        order.sort_by_key(|&number| (self.parameters[number].1, self.parameters[number].0.argument));
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &number)| places[number] = place);
        self.parameters = order.iter().map(|&number| self.parameters[number]).collect();
        for (_, parameters) in &mut self.operations {
            parameters.iter_mut().for_each(|number| *number = places[*number]);
            parameters.sort_unstable();
        }
        self.gradients = places.into_iter().rev().collect();
        self
    }

    /// The operations, in order: when each starts, in µs, and its parameters.
    pub(super) fn takers(&self) -> impl Iterator<Item = (f64, &[usize])> {
        self.operations.iter().map(|(operation, parameters)| (operation.0.start_us, &**parameters))
    }

    /// By parameter: multiply-accumulates of a forward pass, of all samples. None if there are some that cannot be counted, or
    /// cannot be said of a parameter.
    pub(super) fn forward_macs(&self) -> Option<Vec<u64>> {
        let mut macs = vec![0_u64; self.parameters.len()];
        for (Operation(event), parameters) in &self.operations {
            let of_operation = multiply_accumulates(event);
            // A vector is added, or multiplied element by element.
            match parameters.iter().find(|&&number| self.parameters[number].0.shape.len() > 1) {
                Some(&matrix) => macs[matrix] = macs[matrix].checked_add(of_operation?)?,
                None if of_operation.is_some_and(|count| count > 0) => return None,
                None => {}
            }
        }
        (!self.multiplies_besides).then_some(macs)
    }

    /// Samples of an iteration: the first size of the first operation's other argument, if that has several.
    pub(super) fn samples(&self) -> Option<usize> {
        let (Operation(event), _) = self.operations.first()?;
        known(&event.name)?;
        let position = if ["aten::embedding", "aten::addmm"].contains(&&*event.name) { 1 } else { 0 };
        match &event.kind {
            Kind::Operation { shapes, .. } => shapes.get(position).filter(|shape| shape.len() > 1)?.first().copied(),
            _ => None,
        }
    }

    /// The parameters in the order of their first use, called after the module in which that is, if calls of modules were
    /// recorded among `events`, or after the operation.
    pub(super) fn tensors(&self, events: &[Event]) -> Vec<ProfileTensor> {
        let operations: Vec<&Event> = self.operations.iter().map(|(operation, _)| operation.0).collect();
        let modules = modules(events, &operations);
        let mut names: HashMap<String, usize> = HashMap::new();
        let tensor = |&(Slot { shape, role, .. }, number): &(Slot<'a>, usize)| {
            let operation = operations[number].name.trim_start_matches("aten::");
            let place = modules[number].map_or_else(|| format!("{number}.{operation}"), str::to_owned);
            let name = format!("{place}.{role}");
            let count = names.entry(name.clone()).or_default();
            *count += 1;
            ProfileTensor {
                name: if *count == 1 { name } else { format!("{name}.{count}") },
                // What overflows is refused as too large.
                elements: shape.iter().try_fold(1, |all: usize, &size| all.checked_mul(size)).unwrap_or(usize::MAX),
                forward_macs_per_sample: 0,
            }
        };
        self.parameters.iter().map(tensor).collect()
    }
}

/// The state of [`Uses::of`].
struct Walk<'a> {
    /// Shapes, in the order of first use. As many as there are parameters so far have been taken.
    gradients: Vec<&'a [usize]>,
    /// By shape: arguments of known operations that come later.
    ahead: HashMap<&'a [usize], usize>,
    /// By shape: gradients that are not taken.
    wanted: HashMap<&'a [usize], usize>,
    /// By shape: how many parameters have been taken, and which was the last.
    taken: HashMap<&'a [usize], (usize, usize)>,
    uses: Uses<'a>,
}

impl<'a> Walk<'a> {
    fn new(gradients: Vec<&'a [usize]>, takers: &[Taker<'a>]) -> Walk<'a> {
        let (mut ahead, mut wanted) = (HashMap::new(), HashMap::new());
        for slot in takers.iter().filter(|taker| taker.is_known).flat_map(|taker| &taker.slots) {
            *ahead.entry(slot.shape).or_default() += 1;
        }
        for &shape in &gradients {
            *wanted.entry(shape).or_default() += 1;
        }
        Walk { gradients, ahead, wanted, taken: HashMap::new(), uses: Uses::default() }
    }

    fn pass(&mut self, taker: Taker<'a>) {
        let Taker { event, mut slots, is_known } = taker;
        if is_known {
            slots.iter().for_each(|slot| less(&mut self.ahead, slot.shape));
        }
        let mut here = Vec::new();
        while let Some(position) = self.next(&slots, is_known) {
            here.push(self.take(slots.remove(position)));
        }
        let again = slots.iter().filter_map(|slot| self.taken.get(slot.shape));
        let again = again.filter(|(count, number)| is_known && *count == 1 && !here.contains(number));
        let again: Vec<usize> = again.map(|(_, number)| *number).collect();
        here.extend(again);
        if !here.is_empty() {
            self.uses.operations.push((Operation(event), here));
        } else if is_known && multiply_accumulates(event) != Some(0) {
            self.uses.multiplies_besides = true;
        }
    }

    /// Which of an operation's arguments is the next parameter. Of several that fit a known operation the last: its node of
    /// backward hands out gradients in the order of its arguments, and this is the reverse of backward. (Others may have
    /// several nodes, such as a stack of recurrent layers, whose last layer's gradients come first.)
    fn next(&self, slots: &[Slot<'a>], is_known: bool) -> Option<usize> {
        let shape = *self.gradients.get(self.uses.parameters.len())?;
        let of = |counts: &HashMap<&'a [usize], usize>| counts.get(shape).copied().unwrap_or(0);
        if !is_known && of(&self.wanted) <= of(&self.ahead) {
            return None;
        }
        let mut fitting = (0..slots.len()).filter(|&position| slots[position].shape == shape);
        if is_known { fitting.next_back() } else { fitting.next() }
    }

    /// The number of the next parameter, which is this one.
    fn take(&mut self, slot: Slot<'a>) -> usize {
        let number = self.uses.parameters.len();
        self.uses.parameters.push((slot, self.uses.operations.len()));
        less(&mut self.wanted, slot.shape);
        let (count, last) = self.taken.entry(slot.shape).or_default();
        (*count, *last) = (*count + 1, number);
        number
    }
}

/// Are they the same several times over?
fn repeats(gradients: &[&[usize]]) -> bool {
    let count = gradients.len();
    let has_period = |period: usize| gradients[period..] == gradients[..count - period];
    (1..=count / 2).filter(|period| count.is_multiple_of(*period)).any(has_period)
}

fn less<'a>(counts: &mut HashMap<&'a [usize], usize>, shape: &'a [usize]) {
    let count = counts.entry(shape).or_default();
    *count = count.saturating_sub(1);
}

/// By operation, in order of their starts: the innermost module in whose call it lies.
fn modules<'e>(events: &'e [Event], operations: &[&Event]) -> Vec<Option<&'e str>> {
    let thread = operations.first().map(|operation| operation.thread);
    let is_call = |event: &&Event| event.kind == Kind::Module && Some(event.thread) == thread;
    let mut calls: Vec<&Event> = events.iter().filter(is_call).collect();
    calls.sort_by(|one, other| one.start_us.total_cmp(&other.start_us).then(other.end_us.total_cmp(&one.end_us)));
    let mut calls = calls.into_iter().peekable();
    let mut open: Vec<&Event> = Vec::new();
    let innermost = |operation: &&Event| {
        while let Some(call) = calls.next_if(|call| call.start_us <= operation.start_us) {
            open.push(call);
        }
        while open.last().is_some_and(|call| call.end_us < operation.end_us) {
            open.pop();
        }
        open.last().and_then(|call| call.name.strip_prefix(MODULE))
    };
    operations.iter().map(innermost).collect()
}

#[cfg(test)]
mod tests {
    use super::super::iteration::Gradient;
    use super::*;

    /// Operations of the given names and shapes, one after the other, a µs each.
    fn operations(list: &[(&str, &[&[usize]])]) -> Vec<Event> {
        let operation = |(number, (name, shapes)): (usize, &(&str, &[&[usize]]))| Event {
            kind: Kind::Operation { shapes: shapes.iter().map(|shape| shape.to_vec()).collect(), numbers: Vec::new() },
            name: (*name).to_owned(),
            thread: 0,
            start_us: number as f64,
            end_us: number as f64 + 1.0,
        };
        list.iter().enumerate().map(operation).collect()
    }

    /// What is said of gradients of these shapes, the last one first.
    fn uses<'a>(forward: &'a [Event], first_use: &[&'a [usize]]) -> Result<Uses<'a>, TraceError> {
        let gradient = |shape: &&'a [usize]| Gradient { shape: Some(*shape), done_us: 0.0 };
        Uses::of(&Iteration {
            forward: forward.iter().collect(),
            backward_us: 0.0,
            gradients: first_use.iter().rev().map(gradient).collect(),
            update_us: (0.0, 0.0),
        })
    }

    fn found(forward: &[Event], first_use: &[&[usize]]) -> Vec<(f64, Vec<usize>)> {
        let uses = uses(forward, first_use).expect("every gradient fits");
        uses.takers().map(|(start_us, parameters)| (start_us, parameters.to_vec())).collect()
    }

    #[test]
    fn operations_take_what_fits_them_in_order() {
        let forward = operations(&[
            ("aten::conv2d", &[&[8, 3, 9, 9], &[4, 3, 3, 3]]),
            ("aten::relu", &[&[8, 4, 7, 7]]),
            ("aten::batch_norm", &[&[8, 4, 7, 7], &[4], &[4], &[4], &[4]]),
            ("aten::linear", &[&[8, 196], &[10, 196], &[10]]),
        ]);
        let gradients: [&[usize]; 5] = [&[4, 3, 3, 3], &[4], &[4], &[10, 196], &[10]];
        assert_eq!(found(&forward, &gradients), [(0.0, vec![0]), (2.0, vec![1, 2]), (3.0, vec![3, 4])]);
        // A bias may come first: weights of linear layers are accumulated after their transposition.
        let swapped: [&[usize]; 5] = [&[4, 3, 3, 3], &[4], &[4], &[10], &[10, 196]];
        assert_eq!(found(&forward, &swapped), found(&forward, &gradients));
        let uses = uses(&forward, &gradients).unwrap();
        let names: Vec<(String, usize)> = uses.tensors(&[]).into_iter().map(|it| (it.name, it.elements)).collect();
        assert_eq!(names[0], ("0.conv2d.weight".into(), 108));
        assert_eq!(names[4], ("2.linear.bias".into(), 10));
        assert_eq!(uses.samples(), Some(8));
    }

    #[test]
    fn a_tied_embedding_is_used_twice_and_is_one_parameter() {
        let forward = operations(&[
            ("aten::embedding", &[&[100, 8], &[4, 6]]),
            // Of a module that has no known operations.
            ("aten::add", &[&[4, 6, 8], &[6, 8], &[]]),
            ("aten::layer_norm", &[&[4, 6, 8], &[], &[8], &[8]]),
            ("aten::linear", &[&[4, 6, 8], &[100, 8]]),
        ]);
        let gradients: [&[usize]; 4] = [&[100, 8], &[6, 8], &[8], &[8]];
        let expected = [(0.0, vec![0]), (1.0, vec![1]), (2.0, vec![2, 3]), (3.0, vec![0])];
        assert_eq!(found(&forward, &gradients), expected);
        assert_eq!(uses(&forward, &gradients).unwrap().samples(), Some(4));
    }

    /// An activation that has a weight's shape by chance is not taken for it; a part of a known operation is no other one.
    #[test]
    fn what_looks_like_a_parameter_is_none() {
        let mut forward = operations(&[
            ("aten::relu", &[&[8, 8]]),
            ("aten::linear", &[&[8, 8], &[8, 8], &[8]]),
            ("aten::mm", &[&[8, 8], &[8, 8]]),
            ("aten::dropout", &[&[8, 8]]),
        ]);
        forward[1].end_us = 3.0;
        let gradients: [&[usize]; 2] = [&[8, 8], &[8]];
        assert_eq!(found(&forward, &gradients), [(1.0, vec![0, 1])]);
        // A frozen weight has no gradient, and nothing was used before that it could be.
        assert_eq!(found(&forward, &[&[8]]), [(1.0, vec![0])]);
    }

    #[test]
    fn an_operation_with_too_many_arguments_takes_nothing() {
        let shape: &[usize] = &[2, 3];
        let gradients = [shape; 2];
        let many = vec![shape; ARGUMENTS_MAX + 1];
        let fewer = operations(&[("own::all", &many[1..])]);
        assert_eq!(found(&fewer, &gradients), [(0.0, vec![0, 1])]);
        let too_many = operations(&[("own::all", &many[..])]);
        assert!(matches!(uses(&too_many, &gradients), Err(TraceError::Accumulated | TraceError::Homeless { .. })));
    }

    #[test]
    fn a_gradient_that_fits_nothing_is_named() {
        let forward = operations(&[("aten::linear", &[&[2, 3], &[5, 3], &[5]]), ("CompiledFunction", &[])]);
        let gradients: [&[usize]; 4] = [&[5, 3], &[5], &[7, 5], &[7]];
        let error = uses(&forward, &gradients).unwrap_err();
        assert!(matches!(&error, TraceError::Homeless { number: 2, shape } if *shape == [7, 5]), "{error}");
        // A scalar fits nothing.
        assert!(uses(&forward, &[&[5, 3], &[5], &[]]).is_err());
    }

    /// Backward has the weight of a normalisation first, and of two layers in one operation the second.
    #[test]
    fn arguments_of_one_shape_are_told_apart_by_the_order_of_gradients() {
        let forward = operations(&[
            ("aten::layer_norm", &[&[2, 8], &[], &[8], &[8]]),
            ("aten::rnn_tanh", &[&[2, 8], &[8, 8], &[8, 8]]),
        ]);
        // The last one first: bias and weight of the normalisation, first and second layer.
        let uses = uses(&forward, &[&[8], &[8], &[8, 8], &[8, 8]]).unwrap();
        let names: Vec<String> = uses.tensors(&[]).into_iter().map(|tensor| tensor.name).collect();
        let by_gradient: Vec<&str> = uses.gradients.iter().map(|&number| &*names[number]).collect();
        let expected = ["1.rnn_tanh.parameter.2", "1.rnn_tanh.parameter", "0.layer_norm.weight", "0.layer_norm.bias"];
        assert_eq!(by_gradient, expected);
    }

    #[test]
    fn multiply_accumulates_are_those_of_all_operations_or_none() {
        let layer: &[&[usize]] = &[&[2, 3], &[5, 3], &[5]];
        let tied: &[&[usize]] = &[&[4, 3], &[5, 3]];
        let macs = |list: &[(&str, &[&[usize]])], first_use: &[&[usize]]| {
            let forward = operations(list);
            uses(&forward, first_use).unwrap().forward_macs()
        };
        // A second use counts to the same parameter.
        let found = macs(&[("aten::linear", layer), ("aten::linear", tied)], &[&[5, 3], &[5]]);
        assert_eq!(found, Some(vec![2 * 15 + 4 * 15, 0]));
        // The weight is frozen; a layer before it is; nobody knows what the operation does.
        assert_eq!(macs(&[("aten::linear", layer)], &[&[5]]), None);
        let frozen: &[&[usize]] = &[&[2, 4], &[3, 4]];
        assert_eq!(macs(&[("aten::linear", frozen), ("aten::linear", layer)], &[&[5, 3], &[5]]), None);
        assert_eq!(macs(&[("aten::lstm", layer)], &[&[5, 3], &[5]]), None);
    }

    #[test]
    fn tensors_are_called_after_their_modules() {
        let mut events = operations(&[
            ("aten::linear", &[&[2, 3], &[3, 3]]),
            ("aten::linear", &[&[2, 3], &[3, 3]]),
            ("aten::linear", &[&[2, 3], &[3, 3]]),
        ]);
        let module = |name: &str, start_us, end_us, thread| Event {
            kind: Kind::Module,
            name: format!("{MODULE}{name}"),
            thread,
            start_us,
            end_us,
        };
        events.push(module("Linear_0", -0.25, 1.25, 0));
        events.push(module("Attention_0", 0.75, 3.5, 0));
        events.push(module("Net_0", -0.5, 4.0, 0));
        events.push(module("Other_0", 0.0, 9.0, 1));
        let uses = uses(&events[..3], &[&[3, 3], &[3, 3], &[3, 3]]).unwrap();
        let names: Vec<String> = uses.tensors(&events).into_iter().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["Linear_0.weight", "Attention_0.weight", "Attention_0.weight.2"]);
    }
}
