// Goroutines on small stacks that compute and check a sum until the input ends. With an argument,
// only the first thread computes, and it hardly ever leaves its goroutine.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

func sum(n int) int {
	if n == 0 {
		return 0
	}
	return n + sum(n-1)
}

func init() {
	runtime.LockOSThread()
}

func main() {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	bad := make(chan int, 1000)
	goroutines := 50
	if len(os.Args) > 1 {
		goroutines = 0
	}
	for g := 0; g < goroutines; g++ {
		wg.Add(1)
		go func(n int) {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if sum(n) != n*(n+1)/2 {
					bad <- n
					return
				}
			}
		}(10 + g*7)
	}
	fmt.Println("ready")
	if len(os.Args) > 1 {
		var ended atomic.Bool
		go func() {
			io.Copy(io.Discard, os.Stdin)
			ended.Store(true)
		}()
		for !ended.Load() {
			sum(100)
		}
	} else {
		io.Copy(io.Discard, os.Stdin)
	}
	close(stop)
	wg.Wait()
	fmt.Println("bad", len(bad))
}
