// Goroutines that change threads and move their stacks in the middle of calls, and leave some by a
// panic.
package main

import (
	"fmt"
	"runtime"
	"sync"
)

//go:noinline
func nested(n int) int {
	if n == 0 {
		runtime.Gosched()
		return 1
	}
	if n%16 == 0 {
		runtime.Gosched()
	}
	return nested(n-1) + 1
}

//go:noinline
func throws(n int) int {
	if n == 0 {
		panic("all the way")
	}
	return throws(n-1) + 1
}

//go:noinline
func catches(n int) (result int) {
	defer func() {
		recover()
		result = n
	}()
	return throws(n)
}

// A function that calls nothing.
//
//go:noinline
func leaf(a, b int) int { return a*b + a }

func main() {
	var group sync.WaitGroup
	var lock sync.Mutex
	sum := 0
	for i := 0; i < 1000; i++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			result := nested(n) + catches(n%7) + leaf(n, 3)
			lock.Lock()
			sum += result
			lock.Unlock()
		}(i % 20)
	}
	group.Wait()
	fmt.Println(sum)
}
