// Nil dereferences and divisions that become panics, and are recovered.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
)

type large struct {
	pad  [300]int64
	last int64
}

//go:noinline
func load(p *int64) int64 { return *p }

//go:noinline
func far(p *large) int64 { return p.last }

//go:noinline
func store(p *large, x int64) { p.last = x }

//go:noinline
func divide(a, b int64) int64 { return a / b }

// failing says whether f panics with a run-time error that was raised in the function of this name.
func failing(name string, f func()) (failed bool) {
	defer func() {
		_, failed = recover().(runtime.Error)
		var frames [16]uintptr
		all := runtime.CallersFrames(frames[:runtime.Callers(0, frames[:])])
		for more := failed; more; {
			var frame runtime.Frame
			frame, more = all.Next()
			if frame.Function == "main."+name {
				return
			}
		}
		failed = false
	}()
	f()
	return
}

var one = int64(1)
var there large

func fail(n int64) int64 {
	var good int64
	for i := int64(0); i < n; i++ {
		all := failing("load", func() { load(nil) }) && failing("far", func() { far(nil) }) &&
			failing("store", func() { store(nil, 1) }) && failing("divide", func() { divide(i, i-i) })
		store(&there, 1)
		if all && load(&one) == 1 && far(&there) == 1 && divide(6, 2) == 3 {
			good++
		}
	}
	return good
}

func many(n int64) int64 {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var sum int64
	for i := 0; i < 20; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			part := fail(n)
			mu.Lock()
			sum += part
			mu.Unlock()
		}()
	}
	wg.Wait()
	return sum
}

func main() {
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var name string
		var n int64
		fmt.Fscan(strings.NewReader(in.Text()), &name, &n)
		switch name {
		case "fail":
			fmt.Println(fail(n))
		case "many":
			fmt.Println(many(n))
		case "die":
			fmt.Println(load(nil))
		}
	}
}
