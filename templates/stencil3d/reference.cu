// Slow and plainly right: one element at a time, in double.
struct Volume {
    const float *x;
    int depth, height, width;

    __device__ double at(int k, int i, int j) const {
        const bool inside = k >= 0 && k < depth && i >= 0 && i < height && j >= 0 && j < width;
        return inside ? x[((size_t)k * height + i) * width + j] : 0.0;
    }
};

extern "C" __global__ void stencil3d_reference(const float *x, float *y, int depth, int height, int width, float centre,
                                               float side) {
    const Volume volume = {x, depth, height, width};
    const size_t threads = (size_t)gridDim.x * blockDim.x, count = (size_t)depth * height * width;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += threads) {
        const int k = at / width / height, i = at / width % height, j = at % width;
        const double around = volume.at(k - 1, i, j) + volume.at(k + 1, i, j) + volume.at(k, i - 1, j) +
                              volume.at(k, i + 1, j) + volume.at(k, i, j - 1) + volume.at(k, i, j + 1);
        y[at] = (float)(centre * volume.at(k, i, j) + side * around);
    }
}
