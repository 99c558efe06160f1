// A sum in whatever order the additions come.
KERNEL(zoo, const float *x, float *total, int n) {
    EACH(i, n) ADD_TO(total[i % 4], x[i]);
}
KERNEL(zoo_reference, const float *x, float *total, int n) {
    EACH(j, 4) {
        double sum = total[j];
        for (int i = j; i < n; i += 4) sum += x[i];
        total[j] = (float)sum;
    }
}
