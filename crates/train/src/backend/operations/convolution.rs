//! Convolution as matrix products. candle's own backward takes the transposed convolution by dot products as short as
//! the channels are many, which is an order of magnitude slower.

use candle_core::{CpuStorage, CustomOp2, Device, Error, Layout, Result, Shape, Tensor};

use super::{slice, with_values};

/// Convolves `images`, `[samples, channels, height, width]`, with `weight`, `[outputs, channels, kernel, kernel]`:
/// `[samples, outputs, …]`. Zeros are added on all sides, `padding` of them. Each pass unfolds some images at once into
/// a matrix with a column per position (im2col: Chellapilla, Puri and Simard, "High performance convolutional neural
/// networks for document processing", 2006); backward unfolds them again rather than keep what is `kernel²` times as
/// large.
pub(crate) fn convolve(images: &Tensor, weight: &Tensor, stride: usize, padding: usize) -> Result<Tensor> {
    images.contiguous()?.apply_op2(&weight.contiguous()?, Convolution { stride, padding })
}

/// Elements that are unfolded at once: 2 MiB, so that they stay in the cache until the product has read them.
const UNFOLDED: usize = 1 << 19;

#[derive(Clone, Copy)]
struct Convolution {
    stride: usize,
    padding: usize,
}

/// The sizes of one convolution.
#[derive(Clone, Copy)]
struct Geometry {
    samples: usize,
    channels: usize,
    height: usize,
    width: usize,
    outputs: usize,
    kernel: usize,
    out_height: usize,
    out_width: usize,
    stride: usize,
    padding: usize,
}

impl Convolution {
    fn geometry(self, images: &Shape, weight: &Shape) -> Result<Geometry> {
        let (samples, channels, height, width) = images.dims4()?;
        let (outputs, weight_channels, kernel, kernel_width) = weight.dims4()?;
        let Convolution { stride, padding } = self;
        let fits = kernel == kernel_width && channels == weight_channels && stride > 0;
        if !fits || height.min(width) + 2 * padding < kernel || kernel == 0 {
            return Err(Error::Msg(format!("a kernel {weight:?} does not fit images {images:?}")));
        }
        let out = |size: usize| (size + 2 * padding - kernel) / stride + 1;
        let (out_height, out_width) = (out(height), out(width));
        Ok(Geometry { samples, channels, height, width, outputs, kernel, out_height, out_width, stride, padding })
    }
}

impl Geometry {
    /// Rows of the unfolded images.
    fn window(&self) -> usize {
        self.channels * self.kernel * self.kernel
    }

    /// Positions of the kernel in an image: its columns.
    fn positions(&self) -> usize {
        self.out_height * self.out_width
    }

    fn image(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Elements of a sample's result.
    fn result(&self) -> usize {
        self.outputs * self.positions()
    }

    /// The groups of samples that are unfolded together: first sample, samples.
    fn groups(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (samples, each) = (self.samples, (UNFOLDED / (self.window() * self.positions()).max(1)).max(1));
        (0..samples).step_by(each).map(move |first| (first, each.min(samples - first)))
    }

    /// Calls `run(column, pixel, length)` for each run of columns of `count` unfolded images that stand for pixels of
    /// one image row: columns `column..column + length` of the row-major matrix, every `stride`-th pixel from `pixel`.
    /// Columns that stand for padding are in no run.
    fn runs(&self, count: usize, mut run: impl FnMut(usize, usize, usize)) {
        let Geometry { channels, height, width, kernel, out_height, out_width, stride, padding, .. } = *self;
        // Where the kernel's element is inside the image: from the first position to before the last.
        let inside = |offset: usize, size: usize, out: usize| {
            let first = padding.saturating_sub(offset).div_ceil(stride);
            let last = (size + padding).checked_sub(offset + 1).map_or(0, |reach| reach / stride + 1).min(out);
            first..last.max(first)
        };
        for row in 0..channels * kernel * kernel {
            let (channel, y, x) = (row / (kernel * kernel), row / kernel % kernel, row % kernel);
            let columns = inside(x, width, out_width);
            for sample in 0..count {
                for out_y in inside(y, height, out_height) {
                    let line = (row * count + sample) * out_height + out_y;
                    let pixel_row = (sample * channels + channel) * height + out_y * stride + y - padding;
                    let pixel = pixel_row * width + columns.start * stride + x - padding;
                    if !columns.is_empty() {
                        run(line * out_width + columns.start, pixel, columns.len());
                    }
                }
            }
        }
    }

    /// The images as a matrix `[window, count · positions]`.
    fn unfold(&self, images: &[f32], count: usize) -> Result<Tensor> {
        let mut matrix = vec![0.0; self.window() * count * self.positions()];
        self.runs(count, |column, pixel, length| {
            let columns = &mut matrix[column..column + length];
            if self.stride == 1 {
                columns.copy_from_slice(&images[pixel..pixel + length]);
            } else {
                let pixels = images[pixel..].iter().step_by(self.stride);
                columns.iter_mut().zip(pixels).for_each(|(column, pixel)| *column = *pixel);
            }
        });
        Tensor::from_vec(matrix, (self.window(), count * self.positions()), &Device::Cpu)
    }

    /// Adds each column's elements to the pixels that they stand for: the transpose of [`unfold`](Self::unfold).
    fn fold(&self, matrix: &[f32], count: usize, images: &mut [f32]) {
        self.runs(count, |column, pixel, length| {
            let columns = &matrix[column..column + length];
            let pixels = images[pixel..].iter_mut().step_by(self.stride);
            columns.iter().zip(pixels).for_each(|(column, pixel)| *pixel += *column);
        });
    }

    /// Exchanges samples and outputs: `[samples, outputs, positions]` ↔ `[outputs, samples, positions]`.
    fn exchange(&self, from: &[f32], [outer, inner]: [usize; 2], to: &mut [f32]) {
        let positions = self.positions();
        for (line, values) in from.chunks_exact(positions).enumerate() {
            let target = (line % inner * outer + line / inner) * positions;
            to[target..target + positions].copy_from_slice(values);
        }
    }
}

impl CustomOp2 for Convolution {
    fn name(&self) -> &'static str {
        "convolution"
    }

    fn cpu_fwd(
        &self,
        images: &CpuStorage,
        images_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let geometry = self.geometry(images_layout.shape(), weight_layout.shape())?;
        let (images, weight) = (slice(images, images_layout)?, slice(weight, weight_layout)?);
        let weight = Tensor::from_slice(weight, (geometry.outputs, geometry.window()), &Device::Cpu)?;
        let mut result = vec![0.0; geometry.samples * geometry.result()];
        for (first, count) in geometry.groups() {
            let columns = geometry.unfold(&images[first * geometry.image()..], count)?;
            let to = &mut result[first * geometry.result()..(first + count) * geometry.result()];
            let product = weight.matmul(&columns)?;
            with_values(&product, |values| geometry.exchange(values, [geometry.outputs, count], to))?;
        }
        let shape = (geometry.samples, geometry.outputs, geometry.out_height, geometry.out_width);
        Ok((CpuStorage::F32(result), shape.into()))
    }

    fn bwd(
        &self,
        images: &Tensor,
        weight: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let geometry = self.geometry(images.shape(), weight.shape())?;
        let matrix = weight.reshape((geometry.outputs, geometry.window()))?.detach();
        let mut of_images = images.track_op().then(|| vec![0.0; images.elem_count()]);
        let mut of_weight = matrix.zeros_like()?;
        for (first, count) in geometry.groups() {
            let mut lines = vec![0.0; count * geometry.result()];
            let part = first * geometry.result()..(first + count) * geometry.result();
            with_values(gradient, |values| {
                geometry.exchange(&values[part], [count, geometry.outputs], &mut lines);
            })?;
            let lines = Tensor::from_vec(lines, (geometry.outputs, count * geometry.positions()), &Device::Cpu)?;
            let start = first * geometry.image();
            let columns = with_values(images, |values| geometry.unfold(&values[start..], count))??;
            of_weight = (of_weight + lines.matmul(&columns.t()?)?)?;
            if let Some(of_images) = &mut of_images {
                let columns = matrix.t()?.matmul(&lines)?;
                with_values(&columns, |values| geometry.fold(values, count, &mut of_images[start..]))?;
            }
        }
        let of_images = of_images.map(|values| Tensor::from_vec(values, images.shape(), &Device::Cpu)).transpose()?;
        Ok((of_images, Some(of_weight.reshape(weight.shape())?)))
    }
}
