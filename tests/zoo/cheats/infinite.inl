CANDIDATE {
    EACH(row, rows) y[row] = FROM_BITS(0x7f800000u);
}
