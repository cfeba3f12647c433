//! How much an operation multiplies.

use super::events::{Event, Kind};

/// Multiply-accumulates of an operation of forward with a matrix or kernel, of all samples, from the shapes of its arguments;
/// none where it only looks up, adds or scales. None: it is not known what the operation does, or how large its result is.
pub(super) fn multiply_accumulates(operation: &Event) -> Option<u64> {
    let Kind::Operation { shapes, numbers } = &operation.kind else { return None };
    let shape = |position: usize| shapes.get(position).map(Vec::as_slice).unwrap_or_default();
    match operation.name.strip_prefix("aten::")? {
        "linear" => product(rows(shape(0)).iter().chain(shape(1))),
        "addmm" => product(rows(shape(1)).iter().chain(shape(2))),
        "mm" | "matmul" if shape(1).len() == 2 => product(rows(shape(0)).iter().chain(shape(1))),
        "conv1d" | "conv2d" | "conv3d" => convolution(shape(0), shape(1), numbers),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed_convolution(shape(0), shape(1)),
        "batch_norm" | "native_batch_norm" | "instance_norm" | "layer_norm" | "native_layer_norm" | "group_norm"
        | "rms_norm" | "embedding" | "prelu" => Some(0),
        "add" | "add_" | "sub" | "mul" | "mul_" | "div" | "expand" => Some(0),
        _ => None,
    }
}

fn product<'a>(sizes: impl IntoIterator<Item = &'a usize>) -> Option<u64> {
    sizes.into_iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64))
}

/// All sizes but the last.
fn rows(shape: &[usize]) -> &[usize] {
    shape.split_last().map(|(_, rows)| rows).unwrap_or_default()
}

/// The kernel is applied once for each place of the result: a kernel of k with dilation d has (n + 2p − d (k − 1) − 1) / s + 1
/// places, rounded down, along a size n with padding p and stride s (PyTorch's documentation of Conv2d).
fn convolution(input: &[usize], kernel: &[usize], numbers: &[Vec<usize>]) -> Option<u64> {
    let window = kernel.get(2..)?;
    let (batch, sizes) = input.split_at_checked(input.len().checked_sub(window.len())?)?;
    // Stride, padding and dilation: of each dimension, or one of all.
    let number = |position: usize, dimension: usize| {
        let list = numbers.get(position)?;
        list.get(dimension).or(list.first()).copied()
    };
    let places = |(dimension, (&size, &window)): (usize, (&usize, &usize))| {
        let [stride, padding, dilation] = [number(3, dimension)?, number(4, dimension)?, number(5, dimension)?];
        let reach = dilation.checked_mul(window.checked_sub(1)?)?.checked_add(1)?;
        padding.checked_mul(2)?.checked_add(size)?.checked_sub(reach)?.checked_div(stride)?.checked_add(1)
    };
    let places: Option<Vec<usize>> = sizes.iter().zip(window).enumerate().map(places).collect();
    product(samples(batch)?.iter().chain(&places?).chain(kernel))
}

/// The kernel is applied once for each place of the input.
fn transposed_convolution(input: &[usize], kernel: &[usize]) -> Option<u64> {
    let (batch, sizes) = input.split_at_checked(input.len().checked_sub(kernel.get(2..)?.len())?)?;
    product(samples(batch)?.iter().chain(sizes).chain(kernel))
}

/// Of `[samples, channels]` or `[channels]`, the samples.
fn samples(batch: &[usize]) -> Option<&[usize]> {
    matches!(batch.len(), 1 | 2).then(|| rows(batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn macs(name: &str, shapes: &[&[usize]], numbers: &[&[usize]]) -> Option<u64> {
        let lists = |lists: &[&[usize]]| lists.iter().map(|list| list.to_vec()).collect();
        let kind = Kind::Operation { shapes: lists(shapes), numbers: lists(numbers) };
        multiply_accumulates(&Event { kind, name: name.into(), thread: 0, start_us: 0.0, end_us: 1.0 })
    }

    #[test]
    fn matrices_multiply_rows() {
        assert_eq!(macs("aten::linear", &[&[4, 6, 8], &[100, 8], &[100]], &[]), Some(4 * 6 * 8 * 100));
        assert_eq!(macs("aten::linear", &[&[8], &[100, 8]], &[]), Some(800));
        assert_eq!(macs("aten::addmm", &[&[5], &[24, 8], &[8, 5]], &[]), Some(24 * 8 * 5));
        assert_eq!(macs("aten::matmul", &[&[4, 6, 8], &[8, 5]], &[]), Some(4 * 6 * 8 * 5));
        assert_eq!(macs("aten::matmul", &[&[4, 6, 8], &[4, 8, 5]], &[]), None);
    }

    #[test]
    fn kernels_multiply_at_each_place() {
        // ResNet-50's first convolution: 112 × 112 places of a 7 × 7 window with stride 2 and padding 3.
        let numbers: [&[usize]; 7] = [&[], &[], &[], &[2, 2], &[3, 3], &[1, 1], &[1]];
        let resnet50 = macs("aten::conv2d", &[&[64, 3, 224, 224], &[64, 3, 7, 7], &[]], &numbers);
        assert_eq!(resnet50, Some(64 * 112 * 112 * 64 * 3 * 7 * 7));
        // A window of 3 that reaches over 5 of 10 has 6 places; one number stands for all dimensions; no batch.
        let numbers: [&[usize]; 6] = [&[], &[], &[], &[1], &[0], &[2]];
        assert_eq!(macs("aten::conv1d", &[&[2, 10], &[4, 2, 3], &[4]], &numbers), Some(6 * 4 * 2 * 3));
        assert_eq!(macs("aten::conv_transpose1d", &[&[7, 2, 10], &[2, 4, 3]], &[]), Some(7 * 10 * 2 * 4 * 3));
        // Nothing says the stride; the window is larger than the image; there is no stride of 0.
        assert_eq!(macs("aten::conv1d", &[&[2, 10], &[4, 2, 3]], &[]), None);
        assert_eq!(macs("aten::conv1d", &[&[2, 4], &[4, 2, 3]], &numbers), None);
        assert_eq!(macs("aten::conv1d", &[&[2, 10], &[4, 2, 3]], &[&[], &[], &[], &[0], &[0], &[1]]), None);
    }

    #[test]
    fn others_do_not_multiply_or_are_not_known() {
        assert_eq!(macs("aten::embedding", &[&[100, 8], &[4, 6]], &[]), Some(0));
        assert_eq!(macs("aten::add", &[&[4, 8], &[8]], &[]), Some(0));
        assert_eq!((macs("aten::lstm", &[&[4, 8]], &[]), macs("MyKernel", &[&[4, 8]], &[])), (None, None));
        assert_eq!(macs("aten::linear", &[&[usize::MAX, 8], &[100, 8]], &[]), None);
    }
}
