// Goroutines on small stacks that compute and check a sum until the input ends.
package main

import (
	"fmt"
	"io"
	"os"
	"sync"
)

func sum(n int) int {
	if n == 0 {
		return 0
	}
	return n + sum(n-1)
}

func main() {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	bad := make(chan int, 1000)
	for g := 0; g < 50; g++ {
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
	io.Copy(io.Discard, os.Stdin)
	close(stop)
	wg.Wait()
	fmt.Println("bad", len(bad))
}
