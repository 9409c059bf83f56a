// Functions whose arguments lie where the ABI of Go has them.
package main

import (
	"errors"
	"fmt"
	"os"
)

type point struct {
	x, y int64
	name string
}

type small struct {
	a int8
	b int16
}

//go:noinline
func numbers(a int8, b uint16, c int64, d bool, e *int64, f uint32) int64 {
	return int64(a) + int64(b) + c + *e + int64(f)
}

//go:noinline
func texts(s string, list []int64, n int, m map[string]int) int {
	return len(s) + len(list) + n + len(m)
}

//go:noinline
func floats(a float64, n int64, b float32) float64 { return a + float64(n) + float64(b) }

//go:noinline
func (p *point) grow(by int64) int64 { return p.x + by }

//go:noinline
func (p point) area(by int64) int64 { return p.x * p.y * by }

//go:noinline
func blank(_ int64, _ string, last int64) int64 { return last }

//go:noinline
func packed(s small, n int64) int64 { return int64(s.a) + int64(s.b) + n }

//go:noinline
func many(a, b, c, d, e, f, g, h, i, j, k int64, l int8, m int8) int64 {
	return a + b + c + d + e + f + g + h + i + j + k + int64(l) + int64(m)
}

//go:noinline
func spills(a [2]int64, n int64, s string) int64 { return a[0] + n + int64(len(s)) }

//go:noinline
func generic[T any](x T, n int64) int64 { return n * 2 }

//go:noinline
func fails(err error, n int64, call func() int64) int64 {
	if err != nil {
		return n
	}
	return call()
}

type held[T any] struct{ of T }

//go:noinline
func (h *held[T]) put(n int64) int64 { return n }

type names []string

type doc struct {
	name   string
	bytes  []byte
	points []small
}

//go:noinline
func lists(a []int64, b []byte, c names, d *doc, e []small) int64 {
	return int64(len(a) + len(b) + len(c) + len(d.bytes) + len(e))
}

func main() {
	if len(os.Args) > 1 {
		of := doc{"n", []byte{1, 2}, []small{{5, 6}}}
		fmt.Println(lists([]int64{1, 2, 3}, []byte("hi"), names{"x", "yz"}, &of, nil))
		return
	}
	five := int64(5)
	p := point{3, 4, "spot"}
	sum := numbers(-1, 2, 3, true, &five, 6) + int64(texts("häuser", []int64{1, 2}, 7, nil)) +
		int64(floats(0.5, 8, 0.25)) + p.grow(9) + p.area(10) + blank(1, "x", 11) + packed(small{-2, 3}, 12) +
		many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -12, 13) + spills([2]int64{14, 15}, 16, "seventeen") +
		generic("t", 18) + generic(five, 19) + fails(errors.New("no"), 20, nil) + (&held[int64]{21}).put(22)
	fmt.Println(sum)
}
